// The candidate tiles of the matrix product. All tiles except those of matrix units keep one f32
// accumulator per output and add products with fma in ascending k, so they give equal bits.

import type { DType } from '@shardweave/dtypes';
import { defineKernel, elementsPerWord, type Kernel } from '../../kernel/kernel.js';
import type { EpilogueText } from './matmul-epilogue.js';
import { type MatrixTile, matrixBody, matrixEnables } from './matmul-matrix.js';
import { sharedBody } from './matmul-shared.js';

/** What a product's text depends on. */
export interface MatmulSpec {
  readonly a: DType;
  readonly b: DType;
  readonly out: DType;
  readonly bias: DType | undefined;
  readonly accumulate: boolean;
  /** The operand whose sums over k are stored as well. */
  readonly sums: 'a' | 'b' | undefined;
  readonly transposeA: boolean;
  readonly transposeB: boolean;
  /** Whether tiles for hardware bind f16 operands as WGSL's f16, or unpack them from words. */
  readonly hasShaderF16: boolean;
  /**
   * Whether the rows of each operand start and end at multiples of four elements, so that hardware
   * can load them as vectors.
   */
  readonly wide: Readonly<Record<'a' | 'b' | 'out', boolean>>;
  readonly epilogue: EpilogueText | undefined;
}

export interface SharedTile {
  readonly kind: 'shared';
  readonly m: number;
  readonly n: number;
  readonly k: number;
  /** The rows of each invocation's square, which has as many columns. */
  readonly perThread: number;
}

export type Tile =
  /**
   * A tile for hardware. Workgroup memory holds blocks of a and b, and each invocation has a square
   * of outputs.
   */
  | SharedTile
  /** A tile that uses matrix units, for f16 operands only. */
  | MatrixTile
  /** A tile for CPU drivers. It keeps outputs in registers and loads straight from storage. */
  | { readonly kind: 'direct'; readonly m: number; readonly n: number; readonly lanes: number }
  /**
   * A tile of one subgroup, for CPU drivers, on which a load costs far more than an fma. Its lanes
   * load a along k and broadcast what they have.
   */
  | { readonly kind: 'broadcast'; readonly m: number; readonly n: number; readonly lanes: number };

/** The rows and columns of the output that one workgroup computes. */
export function tileExtent(tile: Tile): readonly [m: number, n: number] {
  return isHardwareTile(tile) ? [tile.m, tile.n] : [tile.m, tile.n * tile.lanes];
}

export function isHardwareTile(tile: Tile): tile is SharedTile | MatrixTile {
  return tile.kind === 'shared' || tile.kind === 'matrix';
}

export function tileName(tile: Tile): string {
  if (tile.kind === 'matrix') {
    const { m, n, k, unit } = tile;
    return `matrix ${m}x${n}x${k}/${unit.m}x${unit.n}x${unit.k}`;
  }
  return tile.kind === 'shared'
    ? `shared ${tile.m}x${tile.n}x${tile.k}/${tile.perThread}`
    : `${tile.kind} ${tile.m}x${tile.n}x${tile.lanes}`;
}

export function matmulKernel(spec: MatmulSpec, tile: Tile): Kernel {
  const { a, b, out, bias, accumulate, sums, transposeA, transposeB, epilogue } = spec;
  const size: readonly [number, number, number] = [threadsOf(tile), 1, 1];
  const body = {
    shared: sharedBody,
    matrix: matrixBody,
    direct: directBody,
    broadcast: broadcastBody,
  }[tile.kind];
  const letters = `${transposeA ? 'T' : 'N'}${transposeB ? 'T' : 'N'}`;
  const isWide = (name: 'a' | 'b' | 'out') => isHardwareTile(tile) && spec.wide[name];
  const wide = (['a', 'b', 'out'] as const).filter(isWide);
  const isShaderF16 = (type: DType) => isHardwareTile(tile) && type === 'f16' && spec.hasShaderF16;
  const enables = {
    shared: [a, b].some(isShaderF16) ? ['f16'] : [],
    matrix: tile.kind === 'matrix' ? matrixEnables(tile) : [],
    direct: [],
    broadcast: ['subgroups'],
  }[tile.kind];
  return defineKernel({
    label: `matmul ${letters} ${a} ${b} to ${out}${bias ? ' bias' : ''}${accumulate ? ' accumulate' : ''}${sums ? ` sums ${sums}` : ''}${epilogue ? ` ${epilogue.name}` : ''}${wide.length > 0 ? ` wide ${wide.join(' ')}` : ''} ${tileName(tile)}`,
    enables,
    bindings: [
      { name: 'a', type: a, access: 'read', isWide: isWide('a'), isShaderF16: isShaderF16(a) },
      { name: 'b', type: b, access: 'read', isWide: isWide('b'), isShaderF16: isShaderF16(b) },
      ...(bias === undefined ? [] : [{ name: 'bias', type: bias, access: 'read' as const }]),
      { name: 'out', type: out, access: 'read_write', isWide: isWide('out') },
      ...(epilogue?.bindings ?? []),
      ...(sums === undefined
        ? []
        : [{ name: 'sums', type: 'f32' as const, access: 'read_write' as const }]),
    ],
    params: {
      m: 'u32',
      n: 'u32',
      k: 'u32',
      a_row: 'u32',
      b_row: 'u32',
      out_row: 'u32',
      first_batch: 'u32',
      batch_inner: 'u32',
      a_outer: 'u32',
      a_inner: 'u32',
      b_outer: 'u32',
      b_inner: 'u32',
      out_outer: 'u32',
      out_inner: 'u32',
      parts: 'u32',
      part_k: 'u32',
      out_part: 'u32',
      alpha: 'f32',
      ...epilogue?.params,
    },
    workgroupSize: size,
    isCuttable: true,
    // The body computes out [m, n] = alpha * op(a) [m, k] x op(b) [k, n] + bias. In it `a_base`,
    // `b_base` and `out_base` are the first elements of a batch.
    body: `
${epilogue?.helpers ?? ''}
${isWide('out') ? storeQuad(spec) : storePair(spec)}
${body(tile as never, size, spec)}`,
  });
}

function threadsOf(tile: Tile): number {
  switch (tile.kind) {
    case 'shared':
      return (tile.m * tile.n) / (tile.perThread * tile.perThread);
    case 'matrix':
      return tile.subgroups[0] * tile.subgroups[1] * tile.unit.lanes;
    default:
      return tile.lanes;
  }
}

/**
 * Returns WGSL that stores the columns col and col + 1. col is even, and for 16-bit outputs n is
 * even as well.
 */
function storePair({ out, bias, accumulate, epilogue }: MatmulSpec): string {
  const body =
    elementsPerWord(out) === 2
      ? 'store2_out(at, finish(at, row, col, low), finish(at + 1u, row, col + 1u, high));'
      : `store_out(at, finish(at, row, col, low));
  if (col + 1u < P.n) { store_out(at + 1u, finish(at + 1u, row, col + 1u, high)); }`;
  return `fn finish(at: u32, row: u32, col: u32, sum: f32) -> f32 {
  var v = P.alpha * sum;
  ${bias === undefined ? '' : 'v += load_bias(col);'}
  ${accumulate ? 'v += load_out(at);' : ''}
  ${epilogue?.one ?? ''}
  return v;
}
fn store_pair(base: u32, row: u32, col: u32, low: f32, high: f32) {
  if (row >= P.m || col >= P.n) { return; }
  let at = base + row * P.out_row + col;
  ${body}
}
fn store_quad(base: u32, row: u32, col: u32, sum: vec4<f32>) {
  store_pair(base, row, col, sum.x, sum.y);
  store_pair(base, row, col + 2u, sum.z, sum.w);
}`;
}

/**
 * Returns WGSL that stores four columns at once, for rows that begin and end at multiples of four.
 */
function storeQuad({ bias, accumulate, epilogue }: MatmulSpec): string {
  const biases = [0, 1, 2, 3].map((i) => `load_bias(col + ${i}u)`).join(', ');
  return `fn store_quad(base: u32, row: u32, col: u32, sum: vec4<f32>) {
  if (row >= P.m || col >= P.n) { return; }
  let at = base + row * P.out_row + col;
  var v = P.alpha * sum;
  ${bias === undefined ? '' : `v += vec4<f32>(${biases});`}
  ${accumulate ? 'v += load4_out(at);' : ''}
  ${epilogue?.quad ?? ''}
  store4_out(at, v);
}`;
}

function head(size: readonly [number, number, number], lane: string): string {
  return `@compute @workgroup_size(${size[0]})
fn main(@builtin(workgroup_id) group_here: vec3<u32>, @builtin(${lane}) lane: u32) {
  let group_id = group_here + first_group();
  let batch = group_id.z + P.first_batch;
  let outer = batch / P.batch_inner;
  let inner = batch - outer * P.batch_inner;
  let a_base = outer * P.a_outer + inner * P.a_inner;
  let b_base = outer * P.b_outer + inner * P.b_inner;
  let out_base = outer * P.out_outer + inner * P.out_inner;`;
}

type Of<K extends Tile['kind']> = Extract<Tile, { kind: K }>;

function directBody(
  tile: Of<'direct'>,
  size: readonly [number, number, number],
  spec: MatmulSpec,
): string {
  return registerBody(tile, size, spec, {
    lane: 'local_invocation_index',
    block: 1,
    aLoad: (at) => at('k'),
    bLoad: (at) => at('k'),
    use: (i) => `a${i}`,
  });
}

function broadcastBody(
  tile: Of<'broadcast'>,
  size: readonly [number, number, number],
  spec: MatmulSpec,
): string {
  return registerBody(tile, size, spec, {
    lane: 'subgroup_invocation_id',
    block: tile.lanes,
    aLoad: (at) => `select(0.0, ${at('min(k + lane, last)')}, k + lane <= last)`,
    bLoad: (at, q) => `select(0.0, ${at(`min(k + ${q}u, last)`)}, k + ${q}u <= last)`,
    use: (i, q) => `subgroupBroadcast(a${i}, ${q}u)`,
  });
}

/**
 * Returns the body of a tile in which each lane keeps m rows by n columns. Columns come in pairs
 * that are spread over the lanes. Indices past the edges are clamped or their values zeroed,
 * without branches, and only offsets live through the loop; otherwise a CPU driver takes seconds to
 * compile.
 */
function registerBody(
  { m, n, lanes }: { m: number; n: number; lanes: number },
  size: readonly [number, number, number],
  { transposeA, transposeB }: MatmulSpec,
  options: {
    lane: string;
    /** The steps of k in one turn of the loop, which are unrolled. */
    block: number;
    aLoad: (at: (k: string) => string) => string;
    bLoad: (at: (k: string) => string, q: number) => string;
    use: (row: number, q: number) => string;
  },
): string {
  const rows = Array.from({ length: m }, (_, i) => i);
  const cols = Array.from({ length: n }, (_, j) => j);
  const { block, aLoad, bLoad, use } = options;
  const aAt = (i: number) => (k: string) =>
    transposeA ? `peek_a(ra${i} + (${k}) * a_row)` : `peek_a(ra${i} + ${k})`;
  const bAt = (j: number) => (k: string) =>
    transposeB ? `peek_b(rb${j} + ${k})` : `peek_b(rb${j} + (${k}) * b_row)`;
  const steps = Array.from(
    { length: block },
    (_, q) => `{
    ${cols.map((j) => `let b${j} = ${bLoad(bAt(j), q)};`).join('\n    ')}
    ${rows
      .map(
        (i) =>
          `{ let x = ${use(i, q)}; ${cols.map((j) => `c${i}_${j} = fma(x, b${j}, c${i}_${j});`).join(' ')} }`,
      )
      .join('\n    ')}
    }`,
  );
  const firstOf = (j: number) => (j >> 1) * 2 * lanes + (j & 1);
  const row = (i: number) => `min(first_row + ${i}u, P.m - 1u)`;
  const col = (j: number) => `min(first_col + ${firstOf(j)}u, P.n - 1u)`;
  return `
${head(size, options.lane)}
  let first_row = group_id.y * ${m}u;
  let first_col = group_id.x * ${n * lanes}u + 2u * lane;
  let a_row = P.a_row;
  let b_row = P.b_row;
  let last = P.k - 1u;
  ${rows.map((i) => `let ra${i} = P.a_at + a_base + ${row(i)}${transposeA ? '' : ' * a_row'};`).join('\n  ')}
  ${cols.map((j) => `let rb${j} = P.b_at + b_base + ${col(j)}${transposeB ? ' * b_row' : ''};`).join('\n  ')}
  ${rows.flatMap((i) => cols.map((j) => `var c${i}_${j} = 0.0;`)).join('\n  ')}
  for (var k = 0u; k <= last; k += ${block}u) {
    ${rows.map((i) => `let a${i} = ${aLoad(aAt(i))};`).join('\n    ')}
    ${steps.join('\n    ')}
  }
  ${rows
    .flatMap((i) =>
      cols
        .filter((j) => j % 2 === 0)
        .map(
          (j) =>
            `store_pair(out_base, first_row + ${i}u, first_col + ${firstOf(j)}u, c${i}_${j}, c${i}_${j + 1});`,
        ),
    )
    .join('\n  ')}
}`;
}
