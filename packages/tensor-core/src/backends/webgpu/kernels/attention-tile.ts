// WGSL of attention. A workgroup has a few rows of one side (queries, or keys for their gradients)
// in workgroup memory, four to a vector, and walks blocks of the other side, spread over its lanes:
// first a lane makes scores of its own columns, then sums over them for its own dimensions of the
// head.
//
// Note [hidden]: a weight of -1 stands for a key that its row doesn't see, so that partly hidden
// blocks can pass it over: 0 times NaN is NaN. Whole blocks don't look, and a score of -infinity
// weighs 0 there.

import type { DType } from '@shardweave/dtypes';
import { type Binding, elementsPerWord } from '../kernel.js';
import { ATTENTION_PARAMS, type PairSpec } from './attention-pairs.js';

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
export const PARAMS = { ...ATTENTION_PARAMS, ...STRIDE_PARAMS };

export const range = (count: number) => Array.from({ length: count }, (_, i) => i);
export const lines = (parts: readonly string[]) => parts.join('\n');

/** Numbers that shape the unrolled text. */
export class Shape {
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
   * Sums over the block's columns: `into` += weights (an array in workgroup memory) times a value
   * of the column; hidden ones, by the array `marks`, are passed over in blocks that have any.
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

  /**
   * Stores the sums of all rows: `at` is a row's first element, `factor` what it is multiplied by.
   */
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

export function head({ tile }: AttentionSpec): string {
  return `@compute @workgroup_size(${tile.lanes})
fn main(@builtin(workgroup_id) group_here: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let group_id = group_here + first_group();
  let batch = group_id.z;
  let row0 = group_id.x * ${tile.rows}u;`;
}

export function attentionInputs(
  spec: Pick<AttentionSpec, 'dtype' | 'mask' | 'hasSegments'>,
  names: readonly string[],
): Binding[] {
  const { dtype, mask, hasSegments } = spec;
  const read = (name: string, type: Binding['type']): Binding => ({ name, type, access: 'read' });
  return [
    ...names.map((name) => read(name, name === 'stats' ? 'f32' : dtype)),
    ...(mask === undefined ? [] : [read('mask', mask)]),
    ...(hasSegments ? [read('query_ids', 'raw'), read('key_ids', 'raw')] : []),
  ];
}

export function keyOf(kind: string, spec: AttentionSpec): string {
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

/**
 * Columns of the current block, and whether a row doesn't see one of them. Queries are the rows.
 */
export function keyBlocks(spec: AttentionSpec, shape: Shape): string {
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

export const KEY_COLUMNS = {
  load: 'load_k',
  at: (column: string) => `k_base + ${column} * P.k_row`,
  count: 'P.keys',
};

export const HEAD_BASES = `
  let head = group_id.y;
  let q_base = batch * P.q_batch + head * P.q_head;
  let k_base = batch * P.k_batch + (head / P.group) * P.k_head;
  let v_base = batch * P.v_batch + (head / P.group) * P.v_head;`;
