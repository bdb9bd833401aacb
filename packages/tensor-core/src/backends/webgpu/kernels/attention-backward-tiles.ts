// WGSL of attention's gradients: the sums of dOut * out, then those of queries, then those of keys
// and values, whose rows are keys. See attention-tile.ts.

import { type Binding, defineKernel, type Kernel } from '../kernel.js';
import { pairHelpers } from './attention-pairs.js';
import {
  type AttentionSpec,
  attentionInputs,
  HEAD_BASES,
  head,
  KEY_COLUMNS,
  keyBlocks,
  keyOf,
  PARAMS,
  Shape,
} from './attention-tile.js';

/** delta = sum(dOut * out) of each row, an invocation a row. */
export function deltaKernel(spec: Pick<AttentionSpec, 'dtype'>): {
  readonly key: string;
  build(): Kernel;
} {
  const { dtype } = spec;
  const key = `attention delta ${dtype}`;
  const build = () =>
    defineKernel({
      label: key,
      bindings: [
        { name: 'out', type: dtype, access: 'read' },
        { name: 'd_out', type: dtype, access: 'read' },
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
      workgroupSize: [DELTA_LANES, 1, 1],
      body: `@compute @workgroup_size(${DELTA_LANES})
fn main(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let row = group_index(group_id, count) * ${DELTA_LANES}u + lane;
  if (row >= P.rows) { return; }
  let query = row % P.queries;
  let head = row / P.queries % P.heads;
  let batch = row / P.queries / P.heads;
  let base = ((batch * P.queries + query) * P.heads + head) * P.dim;
  var sum = 0.0;
  for (var d = 0u; d < P.dim; d++) { sum = fma(load_d_out(base + d), load_out(base + d), sum); }
  store_stats(P.num_rows + P.first_row + row, sum);
}`,
    });
  return { key, build };
}

export const DELTA_LANES = 32;

/** Gradients of queries: rows are queries, columns keys. */
export function queriesKernel(spec: AttentionSpec): { readonly key: string; build(): Kernel } {
  const key = keyOf('attention queries', spec);
  return { key, build: () => buildQueries(key, spec) };
}

function buildQueries(label: string, spec: AttentionSpec): Kernel {
  const shape = new Shape(spec);
  const { tile } = spec;
  const { vectors } = shape;
  const outAt = (row: string) => `((batch * P.queries + ${row}) * P.heads + head) * P.dim`;
  return defineKernel({
    label,
    bindings: [
      ...attentionInputs(spec, ['q', 'k', 'v', 'd_out', 'stats']),
      { name: 'dq', type: spec.dtype, access: 'read_write' },
    ],
    params: PARAMS,
    isCuttable: true,
    workgroupSize: [tile.lanes, 1, 1],
    body: `${pairHelpers(spec)}
${backwardMemory(shape)}
${head(spec)}${HEAD_BASES}
  ${shape.loadRows('left_a', (row, d) => `P.scale * load_q(q_base + ${row} * P.q_row + ${d})`, 'P.queries')}
  ${shape.loadRows('left_b', (row, d) => `load_d_out(${outAt(row)} + ${d})`, 'P.queries')}
  ${shape.zeros('o', shape.dims)}
  workgroupBarrier();
  ${keyBlocks(spec, shape)}
    ${shape.scores('left_a', 'weights', KEY_COLUMNS)}
    ${shape.scores('left_b', 'slopes', { load: 'load_v', at: (column) => `v_base + ${column} * P.v_row`, count: 'P.keys' })}
    for (var r = 0u; r < ${vectors}u; r++) {
      for (var j = 0u; j < ${tile.perLane}u; j++) {
        let column = lane + j * ${tile.lanes}u;
        var weight = weights[column * ${vectors}u + r];
        var slope = slopes[column * ${vectors}u + r];
        for (var c = 0u; c < 4u; c++) {
          let query = row0 + 4u * r + c;
          ${slopeOf('query', 'first + column')}
        }
        weights[column * ${vectors}u + r] = weight;
        slopes[column * ${vectors}u + r] = slope;
      }
    }
    workgroupBarrier();
    ${shape.sums([{ into: 'o', weights: 'slopes', at: 'k_base + (first + c) * P.k_row', load: 'load_k' }], { marks: 'weights', count: 'count' })}
    workgroupBarrier();
  }
  ${shape.store('o', { dtype: spec.dtype, at: (row) => `q_base + ${row} * P.q_row`, count: 'P.queries', factor: () => 'P.scale', to: 'dq' })}
}`,
  });
}

function backwardMemory({ vectors, columns, width }: Shape): string {
  return `var<workgroup> left_a: array<vec4<f32>, ${width * vectors}>;
var<workgroup> left_b: array<vec4<f32>, ${width * vectors}>;
var<workgroup> weights: array<vec4<f32>, ${columns * vectors}>;
var<workgroup> slopes: array<vec4<f32>, ${columns * vectors}>;`;
}

/**
 * Makes one pair's used weight (-1: hidden) and its score's gradient from the score and the product
 * with dOut.
 */
function slopeOf(query: string, key: string): string {
  return `let row = ((batch + P.first_batch) * P.heads + head) * P.queries + min(${query}, P.queries - 1u);
          let pair = scored(weight[c], batch, head, ${query}, ${key});
          let p = exp_of(pair.x - load_stats(row));
          let keep = kept(batch, head, ${query}, ${key});
          let is_hidden = pair.y == 0.0;
          slope[c] = select(p * (keep * slope[c] - load_stats(P.num_rows + row)), 0.0, is_hidden);
          weight[c] = select(p * keep, -1.0, is_hidden);`;
}

/**
 * Gradients of keys and values: rows are keys, columns the queries of all heads that share them.
 */
export function keysKernel(spec: AttentionSpec): { readonly key: string; build(): Kernel } {
  const key = keyOf('attention keys', spec);
  return { key, build: () => buildKeys(key, spec) };
}

function buildKeys(label: string, spec: AttentionSpec): Kernel {
  const shape = new Shape(spec);
  const { tile, dtype, isShared } = spec;
  const { vectors, columns } = shape;
  const always = spec.hasSegments || spec.mask !== undefined;
  const written = (name: string): Binding => ({ name, type: dtype, access: 'read_write' });
  return defineKernel({
    label,
    bindings: [
      ...attentionInputs(spec, ['q', 'k', 'v', 'd_out', 'stats']),
      ...(isShared ? [written('dkv')] : [written('dk'), written('dv')]),
    ],
    params: PARAMS,
    isCuttable: true,
    workgroupSize: [tile.lanes, 1, 1],
    body: `${pairHelpers(spec)}
${backwardMemory(shape)}
${head(spec)}
  let kv_head = group_id.y;
  let k_base = batch * P.k_batch + kv_head * P.k_head;
  let v_base = batch * P.v_batch + kv_head * P.v_head;
  ${shape.loadRows('left_a', (row, d) => `P.scale * load_k(k_base + ${row} * P.k_row + ${d})`, 'P.keys')}
  ${shape.loadRows('left_b', (row, d) => `load_v(v_base + ${row} * P.v_row + ${d})`, 'P.keys')}
  ${shape.zeros('ok', shape.dims)}
  ${shape.zeros('ov', shape.dims)}
  workgroupBarrier();
  let last_row = min(row0 + ${tile.rows}u, P.keys) - 1u;
  let start = query_start(row0) / ${columns}u * ${columns}u;
  let end = query_end(last_row);
  for (var head = kv_head * P.group; head < (kv_head + 1u) * P.group; head++) {
  let q_base = batch * P.q_batch + head * P.q_head;
  for (var first = start; first < end; first += ${columns}u) {
    ${spec.hasSegments ? `if (!shares_segment(batch, first, ${columns}u, row0, ${tile.rows}u)) { continue; }` : ''}
    let count = min(${columns}u, P.queries - first);
    let is_partial = ${always} || count < ${columns}u || query_start(last_row) > first || query_end(row0) < first + count || row0 + ${tile.rows}u > P.keys;
    ${shape.scores('left_a', 'weights', { load: 'load_q', at: (column) => `q_base + ${column} * P.q_row`, count: 'P.queries' })}
    ${shape.scores('left_b', 'slopes', { load: 'load_d_out', at: (column) => `((batch * P.queries + ${column}) * P.heads + head) * P.dim`, count: 'P.queries' })}
    for (var r = 0u; r < ${vectors}u; r++) {
      for (var j = 0u; j < ${tile.perLane}u; j++) {
        let column = lane + j * ${tile.lanes}u;
        var weight = weights[column * ${vectors}u + r];
        var slope = slopes[column * ${vectors}u + r];
        for (var c = 0u; c < 4u; c++) {
          ${slopeOf('first + column', 'row0 + 4u * r + c')}
        }
        weights[column * ${vectors}u + r] = weight;
        slopes[column * ${vectors}u + r] = slope;
      }
    }
    workgroupBarrier();
    ${shape.sums(
      [
        {
          into: 'ov',
          weights: 'weights',
          at: `((batch * P.queries + first + c) * P.heads + head) * P.dim`,
          load: 'load_d_out',
        },
        { into: 'ok', weights: 'slopes', at: 'q_base + (first + c) * P.q_row', load: 'load_q' },
      ],
      { marks: 'weights', count: 'count' },
    )}
    workgroupBarrier();
  }
  }
  ${shape.store('ok', { dtype, at: (row) => `P.dk_first + k_base + ${row} * P.k_row`, count: 'P.keys', factor: () => 'P.scale', to: isShared ? 'dkv' : 'dk' })}
  ${shape.store('ov', { dtype, at: (row) => `P.dv_first + v_base + ${row} * P.v_row`, count: 'P.keys', factor: () => '1.0', to: isShared ? 'dkv' : 'dv' })}
}`,
  });
}
