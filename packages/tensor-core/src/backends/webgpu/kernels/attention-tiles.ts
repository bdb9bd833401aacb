// WGSL of attention. A workgroup has a few rows of one side (queries, or keys for their gradients) in
// workgroup memory, four to a vector, and walks blocks of the other side, spread over its lanes: first a
// lane makes scores of its own columns, then sums over them for its own dimensions of the head.
//
// Note [hidden]: a weight of -1 stands for a key that its row doesn't see, so that partly hidden blocks
// can pass it over: 0 times NaN is NaN.

import type { DType } from '@shardweave/dtypes';
import { type Binding, defineKernel, elementsPerWord, type Kernel } from '../kernel.js';
import { ATTENTION_PARAMS, type PairSpec, pairHelpers } from './attention-pairs.js';

/** What the text of the kernels depends on. */
export interface AttentionSpec extends PairSpec {
  readonly dtype: DType;
  /** Room for a row of a head: its size, in whole pairs of dimensions for every lane. */
  readonly width: number;
  /** dk and dv lie in one buffer, which can be bound for writing only once. */
  readonly isShared: boolean;
  readonly tile: AttentionTile;
}

export interface AttentionTile {
  /** Rows in workgroup memory, a multiple of 4. */
  readonly rows: number;
  readonly lanes: number;
  /** Columns that a lane scores: a block has lanes * perLane. */
  readonly perLane: number;
}

/** Bytes of workgroup memory that the backward kernels, the larger ones, take. */
export function tileBytes({ rows, lanes, perLane }: AttentionTile, width: number): number {
  const block = rows * lanes * perLane;
  return 4 * (2 * width * rows + 2 * block + rows * lanes + 3 * rows);
}

const STRIDE_PARAMS = {
  q_batch: 'u32',
  q_head: 'u32',
  q_row: 'u32',
  k_batch: 'u32',
  k_head: 'u32',
  k_row: 'u32',
  v_batch: 'u32',
  v_head: 'u32',
  v_row: 'u32',
  dk_first: 'u32',
  dv_first: 'u32',
} as const;
const PARAMS = { ...ATTENTION_PARAMS, ...STRIDE_PARAMS };

const range = (count: number) => Array.from({ length: count }, (_, i) => i);
const lines = (parts: readonly string[]) => parts.join('\n');

/** Numbers that shape the unrolled text. */
class Shape {
  /** Vectors of four rows. */
  readonly vectors: number;
  readonly columns: number;
  /** Dimensions of the head that a lane sums, in pairs of neighbors. */
  readonly dims: number;
  readonly tile: AttentionTile;
  readonly width: number;

  constructor({ tile, width }: AttentionSpec) {
    this.tile = tile;
    this.width = width;
    this.vectors = tile.rows / 4;
    this.columns = tile.lanes * tile.perLane;
    this.dims = width / tile.lanes;
  }

  /** WGSL of the dimension that is number i of this lane. */
  dimOf(i: number): string {
    return `${(i >> 1) * 2 * this.tile.lanes + (i & 1)}u + 2u * lane`;
  }

  zeros(name: string, count: number): string {
    return lines(
      range(count).flatMap((i) =>
        range(this.vectors).map((r) => `var ${name}${i}_${r} = vec4<f32>();`),
      ),
    );
  }

  /** Rows of an operand in workgroup memory, [dim][row]: those past the last repeat it. */
  loadRows(to: string, at: (row: string, d: string) => string, count: string): string {
    const { vectors, tile } = this;
    return `for (var i = lane; i < P.dim * ${vectors}u; i += ${tile.lanes}u) {
    let d = i / ${vectors}u;
    var value = vec4<f32>();
    for (var c = 0u; c < 4u; c++) {
      let row = min(row0 + 4u * (i - d * ${vectors}u) + c, ${count} - 1u);
      value[c] = ${at('row', 'd')};
    }
    ${to}[i] = value;
  }`;
  }

  /** Products of the rows in `from` with this lane's columns, into `to`. */
  scores(
    from: string,
    to: string,
    right: {
      readonly load: string;
      readonly at: (column: string) => string;
      readonly count: string;
    },
  ): string {
    const { load, at, count } = right;
    const { vectors, tile } = this;
    const columns = range(tile.perLane);
    const rows = range(vectors);
    return `{
    ${this.zeros('s', tile.perLane)}
    ${lines(columns.map((j) => `let at${j} = ${at(`min(first + lane + ${j * tile.lanes}u, ${count} - 1u)`)};`))}
    for (var d = 0u; d < P.dim; d++) {
      ${lines(rows.map((r) => `let a${r} = ${from}[d * ${vectors}u + ${r}u];`))}
      ${lines(
        columns.map(
          (j) =>
            `{ let b = vec4<f32>(${load}(at${j} + d)); ${rows.map((r) => `s${j}_${r} = fma(a${r}, b, s${j}_${r});`).join(' ')} }`,
        ),
      )}
    }
    ${lines(
      columns.flatMap((j) =>
        rows.map((r) => `${to}[(lane + ${j * tile.lanes}u) * ${vectors}u + ${r}u] = s${j}_${r};`),
      ),
    )}
  }`;
  }

  /**
   * Sums over the block's columns: `into` += weights (an array in workgroup memory) times a value of
   * the column; hidden ones, by the array `marks`, are passed over in blocks that have any.
   */
  sums(
    products: readonly {
      readonly into: string;
      readonly weights: string;
      readonly at: string;
      readonly load: string;
    }[],
    options: { readonly marks: string; readonly count: string },
  ): string {
    const { vectors } = this;
    const loop = (isPartial: boolean) => `for (var c = 0u; c < ${options.count}; c++) {
      ${isPartial ? lines(range(vectors).map((r) => `let hidden${r} = ${options.marks}[c * ${vectors}u + ${r}u] == vec4<f32>(-1.0);`)) : ''}
      ${lines(
        products.map(
          ({ into, weights, at, load }) => `{
        ${lines(range(vectors).map((r) => `let w${r} = ${weights}[c * ${vectors}u + ${r}u];`))}
        let at = ${at};
        ${lines(
          range(this.dims).map(
            (i) =>
              `{ let b = vec4<f32>(${load}(at + min(${this.dimOf(i)}, P.dim - 1u))); ${range(
                vectors,
              )
                .map((r) => {
                  const sum = `${into}${i}_${r}`;
                  const added = `fma(w${r}, b, ${sum})`;
                  return `${sum} = ${isPartial ? `select(${added}, ${sum}, hidden${r})` : added};`;
                })
                .join(' ')} }`,
          ),
        )}
      }`,
        ),
      )}
    }`;
    return `if (is_partial) {
    ${loop(true)}
  } else {
    ${loop(false)}
  }`;
  }

  /** Stores the sums of all rows: `at` is a row's first element, `factor` what it is multiplied by. */
  store(
    name: string,
    options: {
      dtype: DType;
      at: (row: string) => string;
      count: string;
      factor: (r: number, c: number) => string;
      to?: string;
    },
  ): string {
    const to = options.to ?? name;
    const pair = (i: number, r: number, c: number): string => {
      const [low, high] = [i, i + 1].map((one) => `${name}${one}_${r}[${c}] * factor`);
      const d = `d${i}`;
      return elementsPerWord(options.dtype) === 2
        ? `if (${d} < P.dim) { store2_${to}(at + ${d}, ${low}, ${high}); }`
        : `if (${d} < P.dim) { store_${to}(at + ${d}, ${low}); }
        if (${d} + 1u < P.dim) { store_${to}(at + ${d} + 1u, ${high}); }`;
    };
    const pairs = range(this.dims / 2).map((i) => 2 * i);
    return `{
    ${lines(pairs.map((i) => `let d${i} = ${this.dimOf(i)};`))}
    ${lines(
      range(this.tile.rows).map(
        (row) => `if (row0 + ${row}u < ${options.count}) {
      let at = ${options.at(`(row0 + ${row}u)`)};
      let factor = ${options.factor(row >> 2, row & 3)};
      ${lines(pairs.map((i) => pair(i, row >> 2, row & 3)))}
    }`,
      ),
    )}
  }`;
  }
}

function head({ tile }: AttentionSpec): string {
  return `@compute @workgroup_size(${tile.lanes})
fn main(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let batch = group_id.z;
  let row0 = group_id.x * ${tile.rows}u;`;
}

function inputs(spec: AttentionSpec, names: readonly string[]): Binding[] {
  const { dtype, mask, hasSegments } = spec;
  const read = (name: string, type: Binding['type']): Binding => ({ name, type, access: 'read' });
  return [
    ...names.map((name) => read(name, name === 'stats' ? 'f32' : dtype)),
    ...(mask === undefined ? [] : [read('mask', mask)]),
    ...(hasSegments ? [read('query_ids', 'raw'), read('key_ids', 'raw')] : []),
  ];
}

function keyOf(kind: string, spec: AttentionSpec): string {
  const { tile, dtype, width, mask, hasSegments, hasDropout, isShared } = spec;
  return [
    kind,
    dtype,
    width,
    mask === undefined ? '' : `mask ${mask}`,
    hasSegments ? 'segments' : '',
    hasDropout ? 'dropout' : '',
    kind === 'attention keys' && isShared ? 'shared' : '',
    `${tile.rows}x${tile.lanes}x${tile.perLane}`,
  ]
    .filter((part) => part !== '')
    .join(' ');
}

/** Columns of the current block, and whether a row doesn't see one of them. Queries are the rows. */
function keyBlocks(spec: AttentionSpec, shape: Shape): string {
  const { columns, tile } = shape;
  const always = spec.hasSegments || spec.mask !== undefined;
  return `
  let last_row = min(row0 + ${tile.rows}u, P.queries) - 1u;
  let end = key_end(last_row);
  for (var first = key_start(row0) / ${columns}u * ${columns}u; first < end; first += ${columns}u) {
    ${spec.hasSegments ? `if (!shares_segment(batch, row0, ${tile.rows}u, first, ${columns}u)) { continue; }` : ''}
    let count = min(${columns}u, P.keys - first);
    let is_partial = ${always} || count < ${columns}u || key_end(row0) < first + count || key_start(last_row) > first || row0 + ${tile.rows}u > P.queries;`;
}

const KEY_COLUMNS = {
  load: 'load_k',
  at: (column: string) => `k_base + ${column} * P.k_row`,
  count: 'P.keys',
};

const HEAD_BASES = `
  let head = group_id.y;
  let q_base = batch * P.q_batch + head * P.q_head;
  let k_base = batch * P.k_batch + (head / P.group) * P.k_head;
  let v_base = batch * P.v_batch + (head / P.group) * P.v_head;`;

export function forwardKernel(spec: AttentionSpec): { readonly key: string; build(): Kernel } {
  const key = keyOf('attention', spec);
  return { key, build: () => buildForward(key, spec) };
}

function buildForward(label: string, spec: AttentionSpec): Kernel {
  const shape = new Shape(spec);
  const { tile } = spec;
  const { vectors, columns } = shape;
  const outAt = (row: string) => `((batch * P.queries + ${row}) * P.heads + head) * P.dim`;
  return defineKernel({
    label,
    bindings: [
      ...inputs(spec, ['q', 'k', 'v']),
      { name: 'out', type: spec.dtype, access: 'read_write' },
      { name: 'stats', type: 'f32', access: 'read_write' },
    ],
    params: PARAMS,
    workgroupSize: [tile.lanes, 1, 1],
    body: `${pairHelpers(spec)}
var<workgroup> left: array<vec4<f32>, ${shape.width * vectors}>;
var<workgroup> weights: array<vec4<f32>, ${columns * vectors}>;
var<workgroup> parts: array<vec4<f32>, ${tile.lanes * vectors}>;
var<workgroup> row_most: array<f32, ${tile.rows}>;
var<workgroup> row_factor: array<f32, ${tile.rows}>;
var<workgroup> lanes_seen: array<u32, ${tile.lanes}>;
${head(spec)}${HEAD_BASES}
  ${shape.loadRows('left', (row, d) => `P.scale * load_q(q_base + ${row} * P.q_row + ${d})`, 'P.queries')}
  if (lane < ${tile.rows}u) { row_most[lane] = -inf(); }
  ${shape.zeros('o', shape.dims)}
  ${lines(range(vectors).map((r) => `var sum${r} = vec4<f32>();`))}
  // One bit a row.
  var seen = 0u;
  workgroupBarrier();
  ${keyBlocks(spec, shape)}
    ${shape.scores('left', 'weights', KEY_COLUMNS)}
    for (var r = 0u; r < ${vectors}u; r++) {
      var most = vec4<f32>(-inf());
      for (var j = 0u; j < ${tile.perLane}u; j++) {
        let column = lane + j * ${tile.lanes}u;
        var value = weights[column * ${vectors}u + r];
        if (is_partial) {
          for (var c = 0u; c < 4u; c++) {
            let pair = scored(value[c], batch, head, row0 + 4u * r + c, first + column);
            value[c] = pair.x;
            seen |= u32(pair.y) << (4u * r + c);
          }
          weights[column * ${vectors}u + r] = value;
        }
        for (var c = 0u; c < 4u; c++) { most[c] = larger(most[c], value[c]); }
      }
      parts[lane * ${vectors}u + r] = most;
    }
    if (!is_partial) { seen = ${2 ** tile.rows - 1}u; }
    workgroupBarrier();
    if (lane < ${tile.rows}u) {
      let before = row_most[lane];
      var most = before;
      for (var i = 0u; i < ${tile.lanes}u; i++) { most = larger(most, parts[i * ${vectors}u + lane / 4u][lane % 4u]); }
      row_most[lane] = most;
      row_factor[lane] = select(exp_of(before - most), 1.0, before == most);
    }
    workgroupBarrier();
    ${lines(range(vectors).map((r) => rescale(r, shape)))}
    workgroupBarrier();
    ${shape.sums([{ into: 'o', weights: 'weights', at: 'v_base + (first + c) * P.v_row', load: 'load_v' }], { marks: 'weights', count: 'count' })}
    workgroupBarrier();
  }
  ${lines(range(vectors).map((r) => `parts[lane * ${vectors}u + ${r}u] = sum${r};`))}
  lanes_seen[lane] = seen;
  workgroupBarrier();
  if (lane < ${tile.rows}u) {
    var total = 0.0;
    var any_seen = 0u;
    for (var i = 0u; i < ${tile.lanes}u; i++) {
      total += parts[i * ${vectors}u + lane / 4u][lane % 4u];
      any_seen |= lanes_seen[i];
    }
    let most = row_most[lane];
    let sees = ((any_seen >> lane) & 1u) == 1u;
    // A row whose scores are all -infinity has no largest one to take out.
    let is_lost = most == -inf();
    row_factor[lane] = select(0.0, select(1.0 / total, nan(), is_lost), sees);
    if (row0 + lane < P.queries) {
      let lse = select(-inf(), select(most + log_of(total), nan(), is_lost), sees);
      store_stats(((batch + P.first_batch) * P.heads + head) * P.queries + row0 + lane, lse);
    }
  }
  workgroupBarrier();
  ${shape.store('o', { dtype: spec.dtype, at: outAt, count: 'P.queries', factor: (r, c) => `row_factor[${4 * r + c}u]`, to: 'out' })}
}`,
  });
}

/** Weights of four rows from their scores, and what was summed before brought to the new maximum. */
function rescale(r: number, { vectors, tile, dims }: Shape): string {
  const four = (name: string) =>
    `vec4<f32>(${range(4)
      .map((c) => `${name}[${4 * r + c}u]`)
      .join(', ')})`;
  return `{
      let factor = ${four('row_factor')};
      let most = ${four('row_most')};
      let shift = select(most, vec4<f32>(), most == vec4<f32>(-inf()));
      sum${r} *= factor;
      ${range(dims)
        .map((i) => `o${i}_${r} *= factor;`)
        .join(' ')}
      for (var j = 0u; j < ${tile.perLane}u; j++) {
        let column = lane + j * ${tile.lanes}u;
        var value = weights[column * ${vectors}u + ${r}u];
        for (var c = 0u; c < 4u; c++) {
          let is_hidden = value[c] == -inf();
          let weight = select(exp_of(value[c] - shift[c]), 0.0, is_hidden);
          sum${r}[c] += weight;
          value[c] = select(weight * kept(batch, head, row0 + ${4 * r}u + c, first + column), -1.0, is_hidden);
        }
        weights[column * ${vectors}u + ${r}u] = value;
      }
    }`;
}

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
      ...inputs(spec, ['q', 'k', 'v', 'd_out', 'stats']),
      { name: 'dq', type: spec.dtype, access: 'read_write' },
    ],
    params: PARAMS,
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

/** Makes one pair's used weight (-1: hidden) and its score's gradient from the score and the product with dOut. */
function slopeOf(query: string, key: string): string {
  return `let row = ((batch + P.first_batch) * P.heads + head) * P.queries + min(${query}, P.queries - 1u);
          let pair = scored(weight[c], batch, head, ${query}, ${key});
          let p = exp_of(pair.x - load_stats(row));
          let keep = kept(batch, head, ${query}, ${key});
          let is_hidden = pair.y == 0.0;
          slope[c] = select(p * (keep * slope[c] - load_stats(P.num_rows + row)), 0.0, is_hidden);
          weight[c] = select(p * keep, -1.0, is_hidden);`;
}

/** Gradients of keys and values: rows are keys, columns the queries of all heads that share them. */
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
      ...inputs(spec, ['q', 'k', 'v', 'd_out', 'stats']),
      ...(isShared ? [written('dkv')] : [written('dk'), written('dv')]),
    ],
    params: PARAMS,
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
