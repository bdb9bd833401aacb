// The WGSL kernels of attention's gradients, in the order in which they run: the sums of dOut * out
// by row (a kernel of their own only beside segments), the gradients of queries, and those of keys
// and values, whose tiles have keys as rows. attention-tile.ts describes the tiles.
//
// `npm run kernels -- attention keys f32 wide shared 64x16x1` prints, among other lines:
//
//   for (var head = kv_head * P.group; head < (kv_head + 1u) * P.group; head++) {
//     ...
//     for (var first = start; first < end; first += 64u) {
//       ...
//       { let weight = exp4(s[0u] - lse);
//         s[0u] = weight;
//         t[0u] = weight * (t[0u] - delta); }

import type { DType } from '@shardweave/dtypes';
import { type Binding, defineKernel, type Kernel } from '../../kernel/kernel.js';
import { blockHelpers, dropped, keep, mark } from './attention-block.js';
import {
  KEY_COLUMNS,
  keyBlocks,
  QUERY_ROWS,
  queriesHead,
  SKIP_SEGMENTS,
} from './attention-forward-tiles.js';
import { pairHelpers } from './attention-pairs.js';
import { Slices } from './attention-slices.js';
import { type AttentionSpec, attentionInputs, idAliases, keyOf, PARAMS } from './attention-tile.js';

const DELTA_THREADS = 64;

/**
 * Stores delta = sum(dOut * out) of each row. `lanes` neighboring invocations share a row; eight of
 * them load whole memory sectors of 32 bytes.
 */
export function deltaKernel(spec: {
  readonly dtype: DType;
  readonly isWide: boolean;
  readonly lanes: 1 | 8;
}): { readonly key: string; readonly rows: number; build(): Kernel } {
  const { dtype, isWide, lanes } = spec;
  const key = `attention delta ${dtype}${isWide ? ' wide' : ''} ${lanes}`;
  const rows = DELTA_THREADS / lanes;
  const added = isWide
    ? 'sum += dot(load4_d_out(base + 4u * d), load4_out(base + 4u * d));'
    : 'sum = fma(load_d_out(base + d), load_out(base + d), sum);';
  const build = () =>
    defineKernel({
      label: key,
      bindings: [
        { name: 'out', type: dtype, access: 'read', isWide },
        { name: 'd_out', type: dtype, access: 'read', isWide },
        { name: 'stats', type: 'f32', access: 'read_write' },
      ],
      params: {
        first_row: 'u32',
        num_rows: 'u32',
        rows: 'u32',
        heads: 'u32',
        queries: 'u32',
        dim: 'u32',
      },
      workgroupSize: [DELTA_THREADS, 1, 1],
      body: `${lanes === 1 ? '' : `var<workgroup> parts: array<f32, ${DELTA_THREADS}>;`}
@compute @workgroup_size(${DELTA_THREADS})
fn main(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let row = group_index(group_id, count) * ${rows}u + lane / ${lanes}u;
  var sum = 0.0;
  if (row < P.rows) {
    let query = row % P.queries;
    let head = row / P.queries % P.heads;
    let batch = row / P.queries / P.heads;
    let base = ((batch * P.queries + query) * P.heads + head) * P.dim;
    for (var d = lane % ${lanes}u; d < P.dim${isWide ? ' / 4u' : ''}; d += ${lanes}u) { ${added} }
  }
  ${lanes === 1 ? '' : 'parts[lane] = sum; workgroupBarrier();'}
  if (row < P.rows && lane % ${lanes}u == 0u) {
    ${lanes === 1 ? '' : `for (var i = 1u; i < ${lanes}u; i++) { sum += parts[lane + i]; }`}
    store_stats(P.num_rows + P.first_row + row, sum);
  }
}`,
    });
  return { key, rows, build };
}

/**
 * Whether the queries' kernel also computes the sums of dOut * out and stores them in stats. With
 * segments it does not, as `out` would be its ninth buffer, and a device may allow only eight.
 */
export function sumsDelta({ hasSegments }: AttentionSpec): boolean {
  return !hasSegments;
}

/** The kernel of the queries' gradients; its tiles have queries as rows and keys as columns. */
export function queriesKernel(spec: AttentionSpec): { readonly key: string; build(): Kernel } {
  const key = keyOf('attention queries', spec);
  return { key, build: () => buildQueries(key, spec) };
}

function buildQueries(label: string, spec: AttentionSpec): Kernel {
  const slices = new Slices(spec, { scoreSlices: 2 });
  const { dtype, isWide, tile } = spec;
  const { rows, threads } = slices;
  const [stats, ...others] = attentionInputs(spec, ['stats', 'q', 'k', 'v', 'd_out']);
  return defineKernel({
    label,
    bindings: [
      ...others,
      ...(sumsDelta(spec) ? [{ name: 'out', type: dtype, access: 'read', isWide } as const] : []),
      { ...stats!, access: sumsDelta(spec) ? 'read_write' : 'read' },
      { name: 'dq', type: dtype, access: 'read_write', isWide },
    ],
    aliases: idAliases(spec),
    params: PARAMS,
    isCuttable: true,
    workgroupSize: [threads, 1, 1],
    body: `${pairHelpers(spec)}
${blockHelpers(spec, 'queries')}
${slices.declarations(['q', 'k', 'd_out', 'v'], ['k'])}
${sumsDelta(spec) ? `var<workgroup> deltas: array<array<f32, ${rows}>, ${tile.across}>;` : ''}
${queriesHead(threads, { across: tile.across, rows })}
  let stats_base = ((batch + P.first_batch) * P.heads + head) * P.queries;
  ${sumsDelta(spec) ? deltasOf(spec, slices) : ''}
  ${slices.zeros('o', tile.quads)}
  ${keyBlocks(spec, slices)}
    ${slices.scores('s', QUERY_ROWS.q, KEY_COLUMNS.k)}
    ${mark(spec, 's', (i) => slices.rowOf(i))}
    ${keep(spec)}
    ${slices.scores('t', QUERY_ROWS.d_out, KEY_COLUMNS.v)}
    ${slices.rowwise(
      (i) => `let at = stats_base + min(${slices.rowOf(i)}, P.queries - 1u);
      let weight = exp4(s[${i}] - vec4<f32>(load_stats(at)));
      t[${i}] = weight * (${dropped(spec, `t[${i}]`, i)} - vec4<f32>(load_stats(P.num_rows + at)));`,
    )}
    if (is_partial) {
      ${slices.rowwise((i) => `t[${i}] = select(t[${i}], vec4<f32>(), picked(hidden, ${i}));`)}
    }
    ${slices.sums('o', 't', KEY_COLUMNS.k)}
  }
  ${slices.store('o', {
    to: 'dq',
    at: (row) => `q_base + ${row} * P.q_row`,
    count: 'P.queries',
    factor: () => 'P.scale',
  })}
}`,
  });
}

/**
 * Returns WGSL that stores sum(dOut * out) of the tile's rows in stats. The invocations of a row
 * each sum some of its dimensions, and one invocation adds these parts up. The barriers at the end
 * let the workgroup read what it has written to stats.
 */
function deltasOf({ isWide, tile }: AttentionSpec, { rows, threads }: Slices): string {
  const added = isWide
    ? 'sum += dot(load4_d_out(at + 4u * d), load4_out(at + 4u * d));'
    : 'sum = fma(load_d_out(at + d), load_out(at + d), sum);';
  return `for (var r = y; r < ${rows}u; r += ${tile.down}u) {
    var sum = 0.0;
    if (row0 + r < P.queries) {
      let at = out_base + (row0 + r) * P.heads * P.dim;
      for (var d = x; d < P.dim${isWide ? ' / 4u' : ''}; d += ${tile.across}u) { ${added} }
    }
    deltas[x][r] = sum;
  }
  workgroupBarrier();
  for (var r = lane; r < ${rows}u; r += ${threads}u) {
    if (row0 + r < P.queries) {
      var sum = 0.0;
      for (var i = 0u; i < ${tile.across}u; i++) { sum += deltas[i][r]; }
      store_stats(P.num_rows + stats_base + row0 + r, sum);
    }
  }
  storageBarrier();
  workgroupBarrier();`;
}

/**
 * The kernel of the gradients of keys and values. Its tiles have keys as rows, and as columns the
 * queries of all heads that share these keys.
 */
export function keysKernel(spec: AttentionSpec): { readonly key: string; build(): Kernel } {
  const key = keyOf('attention keys', spec);
  return { key, build: () => buildKeys(key, spec) };
}

function buildKeys(label: string, spec: AttentionSpec): Kernel {
  // Loads by elements and narrow heads need the registers that more slices at once would take.
  const scoreSlices = spec.isWide && spec.tile.across > 8 ? 4 : 1;
  const slices = new Slices(spec, { scoreSlices });
  const { dtype, isWide, isShared, hasSegments, mask, tile } = spec;
  const { rows, columns, threads } = slices;
  const written = (name: string): Binding => ({ name, type: dtype, access: 'read_write', isWide });
  const stored = (name: 'k' | 'v', factor: string) =>
    slices.store(`o${name}`, {
      to: isShared ? 'dkv' : `d${name}`,
      at: (row) => `P.d${name}_first + ${name}_base + ${row} * P.${name}_row`,
      count: 'P.keys',
      factor: () => factor,
    });
  const q = { name: 'q', base: 'q_base', first: 'first' } as const;
  const dOut = { name: 'd_out', base: 'out_base', first: 'first' } as const;
  return defineKernel({
    label,
    bindings: [
      ...attentionInputs(spec, ['q', 'k', 'v', 'd_out', 'stats']),
      ...(isShared ? [written('dkv')] : [written('dk'), written('dv')]),
    ],
    aliases: idAliases(spec),
    params: PARAMS,
    isCuttable: true,
    workgroupSize: [threads, 1, 1],
    body: `${pairHelpers(spec)}
${blockHelpers(spec, 'keys')}
${slices.declarations(['q', 'k', 'd_out', 'v'], ['q', 'd_out'])}
fn stats4(at: u32, column_x: u32) -> vec4<f32> {
  var value = vec4<f32>();
  for (var c = 0u; c < 4u; c++) { value[c] = load_stats(at + min(column_x + c, P.queries - 1u)); }
  return value;
}
@compute @workgroup_size(${threads})
fn main(@builtin(workgroup_id) group_here: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let group_id = group_here + first_group();
  let x = lane % ${tile.across}u;
  let y = lane / ${tile.across}u;
  let batch = group_id.z;
  let kv_head = group_id.y;
  let row0 = group_id.x * ${rows}u;
  let k_base = batch * P.k_batch + kv_head * P.k_head;
  let v_base = batch * P.v_batch + kv_head * P.v_head;
  var turn = 0u;
  ${slices.zeros('ok', tile.quads)}
  ${slices.zeros('ov', tile.quads)}
  let last_row = min(row0 + ${rows}u, P.keys) - 1u;
  let start = query_start(row0) / ${columns}u * ${columns}u;
  let end = query_end(last_row);
  ${hasSegments ? `let row_ids = keys_segments(batch, row0, last_row + 1u - row0);` : ''}
  for (var head = kv_head * P.group; head < (kv_head + 1u) * P.group; head++) {
  let q_base = batch * P.q_batch + head * P.q_head;
  let out_base = (batch * P.queries * P.heads + head) * P.dim;
  let stats_base = ((batch + P.first_batch) * P.heads + head) * P.queries;
  for (var first = start; first < end; first += ${columns}u) {
    let count = min(${columns}u, end - first);
    ${hasSegments ? `let ids = queries_segments(batch, first, count);\n    ${SKIP_SEGMENTS}` : ''}
    let is_partial = ${mask !== undefined} || ${hasSegments ? 'has_several || ' : ''}count < ${columns}u || query_start(last_row) > first || query_end(row0) < first + count || row0 + ${rows}u > P.keys;
    ${slices.scores('s', { name: 'k', base: 'k_base', first: 'row0' }, q)}
    ${mark(spec, 's', (i) => slices.rowOf(i))}
    ${keep(spec)}
    ${slices.scores('t', { name: 'v', base: 'v_base', first: 'row0' }, dOut)}
    let lse = stats4(stats_base, first + 4u * x);
    let delta = stats4(P.num_rows + stats_base, first + 4u * x);
    ${slices.rowwise(
      (i) => `let weight = exp4(s[${i}] - lse);
      s[${i}] = ${dropped(spec, 'weight', i)};
      t[${i}] = weight * (${dropped(spec, `t[${i}]`, i)} - delta);`,
    )}
    if (is_partial) {
      ${slices.rowwise(
        (i) => `s[${i}] = without(hidden, ${i}, s[${i}]);
        t[${i}] = without(hidden, ${i}, t[${i}]);`,
      )}
    }
    ${slices.sums('ov', 's', dOut)}
    ${slices.sums('ok', 't', q)}
  }
  }
  ${stored('k', 'P.scale')}
  ${stored('v', '1.0')}
}`,
  });
}
