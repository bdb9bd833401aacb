// The WGSL kernel of attention's forward pass, whose tiles have queries as rows and keys as
// columns. attention-tile.ts describes the tiles.
//
// `npm run kernels -- attention f32 wide 64x8x2` prints, among other lines:
//
//   for (var first = key_start(row0) / 32u * 32u; first < end; first += 32u) {
//     ...
//     { s[0u] = fma(vec4<f32>(a[0u >> 2u][0u & 3u]), b, s[0u]); }
//     ...
//     { most[0u >> 2u][0u & 3u] = most_of(s[0u]); }
//     ...
//     { found[0u >> 2u][0u & 3u] = sum_of(s[0u]); }
//     ...
//     { sum[0u] = fma(sum[0u], factor[0u], found[0u]); }
//     ...
//     { o[0u * 2u + 0u] = fma(vec4<f32>(a[0u >> 2u][0u & 3u]), b, o[0u * 2u + 0u]); }

import { defineKernel, type Kernel } from '../../kernel/kernel.js';
import { blockHelpers, dropped, keep, mark } from './attention-block.js';
import { pairHelpers } from './attention-pairs.js';
import { type RowsOf, Slices } from './attention-slices.js';
import {
  type AttentionSpec,
  attentionInputs,
  each,
  idAliases,
  keyOf,
  PARAMS,
} from './attention-tile.js';

export function forwardKernel(spec: AttentionSpec): { readonly key: string; build(): Kernel } {
  const key = keyOf('attention', spec);
  return { key, build: () => buildForward(key, spec) };
}

function buildForward(label: string, spec: AttentionSpec): Kernel {
  const slices = new Slices(spec, { scoreSlices: 1 });
  const { dtype, isWide, tile } = spec;
  const { rows, threads, leftStride } = slices;
  const { across, down, quads } = tile;
  return defineKernel({
    label,
    bindings: [
      ...attentionInputs(spec, ['q', 'k', 'v']),
      { name: 'out', type: dtype, access: 'read_write', isWide },
      { name: 'stats', type: 'f32', access: 'read_write' },
    ],
    aliases: idAliases(spec),
    params: PARAMS,
    isCuttable: true,
    workgroupSize: [threads, 1, 1],
    body: `${pairHelpers(spec)}
${blockHelpers(spec, 'queries')}
${slices.declarations(['q', 'k'], ['v'])}
// Each row has in parts what each invocation found, in row_most its largest score so far, and in
// row_factor what its sums are multiplied by.
var<workgroup> parts: array<array<vec4<f32>, ${leftStride}>, ${across}>;
var<workgroup> row_most: array<vec4<f32>, ${rows / 4}>;
var<workgroup> row_factor: array<vec4<f32>, ${rows / 4}>;
var<workgroup> rows_seen: array<atomic<u32>, ${down}>;
fn most_of(v: vec4<f32>) -> f32 { return max(max(v.x, v.y), max(v.z, v.w)); }
fn sum_of(v: vec4<f32>) -> f32 { return (v.x + v.y) + (v.z + v.w); }
${queriesHead(threads, { across, rows })}
  if (lane < ${rows / 4}u) { row_most[lane] = vec4<f32>(-inf()); }
  ${slices.zeros('o', quads)}
  var sum: array<vec4<f32>, 2>;
  var seen = 0u;
  ${keyBlocks(spec, slices)}
    ${slices.scores('s', QUERY_ROWS.q, KEY_COLUMNS.k)}
    ${mark(spec, 's', (i) => slices.rowOf(i))}
    if (is_partial) {
      ${slices.rowwise((i) => `s[${i}] = select(s[${i}], vec4<f32>(-inf()), picked(hidden, ${i}));`)}
    }
    seen |= ~hidden;
    var most = array<vec4<f32>, 2>();
    ${slices.rowwise((i) => `most[${i} >> 2u][${i} & 3u] = most_of(s[${i}]);`)}
    ${slices.halves((h, at) => `parts[x][${at}] = most[${h}];`)}
    workgroupBarrier();
    if (lane < ${rows}u) {
      let at = lane >> 2u;
      let before = row_most[at][lane & 3u];
      var most = before;
      for (var i = 0u; i < ${across}u; i++) { most = max(most, parts[i][at][lane & 3u]); }
      row_most[at][lane & 3u] = most;
      row_factor[at][lane & 3u] = select(exp_of(before - most), 1.0, bitcast<u32>(before) == bitcast<u32>(most));
    }
    workgroupBarrier();
    var factor = array<vec4<f32>, 2>();
    var found = array<vec4<f32>, 2>();
    ${slices.halves((h, at) => `most[${h}] = row_most[${at}]; most[${h}] = select(most[${h}], vec4<f32>(), are_lowest(most[${h}])); factor[${h}] = row_factor[${at}];`)}
    ${slices.rowwise((i) => `s[${i}] = exp4(s[${i}] - vec4<f32>(most[${i} >> 2u][${i} & 3u]));`)}
    ${slices.rowwise((i) => `found[${i} >> 2u][${i} & 3u] = sum_of(s[${i}]);`)}
    ${slices.halves((h) => `sum[${h}] = fma(sum[${h}], factor[${h}], found[${h}]);`)}
    ${slices.rowwise((i) => each(quads, (q) => `o[${i} * ${quads}u + ${q}] *= factor[${i} >> 2u][${i} & 3u];`))}
    ${keep(spec)}
    ${spec.hasDropout ? slices.rowwise((i) => `s[${i}] = ${dropped(spec, `s[${i}]`, i)};`) : ''}
    ${slices.sums('o', 's', KEY_COLUMNS.v)}
  }
  ${slices.halves((h, at) => `parts[x][${at}] = sum[${h}];`)}
  atomicOr(&rows_seen[y], (seen | (seen >> 8u) | (seen >> 16u) | (seen >> 24u)) & 255u);
  workgroupBarrier();
  if (lane < ${rows}u) {
    let at = lane >> 2u;
    var total = 0.0;
    for (var i = 0u; i < ${across}u; i++) { total += parts[i][at][lane & 3u]; }
    let most = row_most[at][lane & 3u];
    let bit = 4u * (at / ${down}u) + (lane & 3u);
    let sees = ((atomicLoad(&rows_seen[at % ${down}u]) >> bit) & 1u) == 1u;
    // A row whose scores are all -infinity has no largest one to take out.
    let is_lost = is_lowest(most);
    row_factor[at][lane & 3u] = select(0.0, select(1.0 / total, nan(), is_lost), sees);
    if (row0 + lane < P.queries) {
      let lse = select(-inf(), select(most + log_of(total), nan(), is_lost), sees);
      store_stats(((batch + P.first_batch) * P.heads + head) * P.queries + row0 + lane, lse);
    }
  }
  workgroupBarrier();
  var factor: array<vec4<f32>, 2>;
  ${slices.halves((h, at) => `factor[${h}] = row_factor[${at}];`)}
  ${slices.store('o', {
    to: 'out',
    at: (row) => `((batch * P.queries + ${row}) * P.heads + head) * P.dim`,
    count: 'P.queries',
    factor: (i) => `factor[${i} >> 2u][${i} & 3u]`,
  })}
}`,
  });
}

/**
 * Returns the head of `main` for kernels whose rows are queries. Workgroups take the last block of
 * queries first: under a causal mask it sees the most keys, and what takes longest starts first.
 */
export function queriesHead(
  threads: number,
  { across, rows }: { readonly across: number; readonly rows: number },
): string {
  return `@compute @workgroup_size(${threads})
fn main(@builtin(workgroup_id) group_here: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let group_id = group_here + first_group();
  let x = lane % ${across}u;
  let y = lane / ${across}u;
  let batch = group_id.z;
  let head = group_id.y;
  let row0 = ((P.queries - 1u) / ${rows}u - group_id.x) * ${rows}u;
  let q_base = batch * P.q_batch + head * P.q_head;
  let k_base = batch * P.k_batch + (head / P.group) * P.k_head;
  let v_base = batch * P.v_batch + (head / P.group) * P.v_head;
  let out_base = (batch * P.queries * P.heads + head) * P.dim;
  var turn = 0u;`;
}

/**
 * Returns WGSL that opens the loop over blocks of keys. It declares `count`, the keys of the block,
 * and `is_partial`, whether some row may not see some key of it.
 */
export function keyBlocks(spec: AttentionSpec, { rows, columns }: Slices): string {
  const isMasked = spec.mask !== undefined;
  const { hasSegments } = spec;
  return `let last_row = min(row0 + ${rows}u, P.queries) - 1u;
  let end = key_end(last_row);
  ${hasSegments ? `let row_ids = queries_segments(batch, row0, last_row + 1u - row0);` : ''}
  for (var first = key_start(row0) / ${columns}u * ${columns}u; first < end; first += ${columns}u) {
    let count = min(${columns}u, end - first);
    ${hasSegments ? `let ids = keys_segments(batch, first, count);\n    ${SKIP_SEGMENTS}` : ''}
    let is_partial = ${isMasked} || ${hasSegments ? 'has_several || ' : ''}count < ${columns}u || key_end(row0) < first + count || key_start(last_row) > first || row0 + ${rows}u > P.queries;`;
}

/**
 * WGSL that skips a block whose segment ids lie apart from those of the rows, and declares whether
 * rows and columns have more than one id between them.
 */
export const SKIP_SEGMENTS = `if (ids.x > row_ids.y || row_ids.x > ids.y) { continue; }
    let has_several = any(vec4<i32>(ids, row_ids.xx) != row_ids.xyxy);`;

export const QUERY_ROWS: Readonly<Record<'q' | 'd_out', RowsOf>> = {
  q: { name: 'q', base: 'q_base', first: 'row0' },
  d_out: { name: 'd_out', base: 'out_base', first: 'row0' },
};

export const KEY_COLUMNS: Readonly<Record<'k' | 'v', RowsOf>> = {
  k: { name: 'k', base: 'k_base', first: 'first' },
  v: { name: 'v', base: 'v_base', first: 'first' },
};
