// What a product for hardware is made of: which tile, in how many parts of k, which operands are
// loaded as vectors, and the sum of the parts. Parts change the order of a sum, so their number
// follows from the shape alone: whichever tile is tuned, the bits are the same.

import { byteSize } from '@shardweave/dtypes';
import type { View } from '../../../view.js';
import type { KernelContext } from '../context.js';
import { defineKernel, elementsPerWord, type Kernel } from '../kernel.js';
import { ELEMENTWISE_SIZE, elementwiseGrid, elementwiseMain } from './elementwise.js';
import type { MatmulCall } from './matmul.js';
import { epilogueViews } from './matmul-epilogue.js';
import type { MatmulSpec, SharedTile } from './matmul-tiles.js';
import { present } from './rows.js';

export interface Extent {
  readonly m: number;
  readonly n: number;
  readonly k: number;
  /** How many products at once. */
  readonly batches: number;
}

/**
 * Best first. The share of a chip's rate that a full tile reaches is an estimate from its loads of
 * workgroup memory for a multiply-add; tuning measures.
 */
const TILES: readonly (SharedTile & { readonly share: number })[] = [
  { kind: 'shared', m: 128, n: 128, k: 8, perThread: 8, share: 1 },
  { kind: 'shared', m: 128, n: 64, k: 8, perThread: 8, share: 0.95 },
  { kind: 'shared', m: 64, n: 64, k: 8, perThread: 8, share: 0.85 },
  { kind: 'shared', m: 64, n: 64, k: 16, perThread: 4, share: 0.6 },
  { kind: 'shared', m: 32, n: 32, k: 16, perThread: 4, share: 0.45 },
];
export const HARDWARE_TILES: readonly SharedTile[] = TILES;

/** Two workgroups for each of the 132 processors of the largest chips. */
const FILLING_GROUPS = 264;
/** The extent of the tile by which parts of k are counted, whichever is chosen. */
const PART_TILE = { m: 128, n: 64 };
/** Rows, and columns, of the largest tile. */
const LARGEST_TILE = 128;
/** Fewer steps of k do not earn back that a part is written and read again. */
const LEAST_PART = 512;
/** Every tile's block of k divides it, so that parts begin where blocks do. */
const PART_MULTIPLE = 16;

export function chooseHardwareTile(extent: Extent, candidates: readonly SharedTile[]): SharedTile {
  const groupsOf = (tile: SharedTile) => numGroups(extent, tile);
  const cost = (tile: SharedTile) => {
    const { share } = TILES.find((t) => isSameTile(t, tile))!;
    return wasteOf(extent, tile) / (share * Math.min(1, groupsOf(tile) / FILLING_GROUPS));
  };
  return candidates.reduce((best, tile) => (cost(tile) < cost(best) ? tile : best));
}

/** Workgroups of a product, its parts of k included. */
export function numGroups(
  extent: Extent,
  { m, n }: { readonly m: number; readonly n: number },
): number {
  const { batches } = extent;
  return Math.ceil(extent.m / m) * Math.ceil(extent.n / n) * batches * partsOf(extent).numParts;
}

/** Area of the tiles over the output's. */
export function wasteOf(
  extent: Extent,
  { m, n }: { readonly m: number; readonly n: number },
): number {
  return (Math.ceil(extent.m / m) * m * Math.ceil(extent.n / n) * n) / (extent.m * extent.n);
}

/**
 * Weight gradients sum over all tokens into few tiles: those sums are cut, as evenly as blocks
 * allow.
 */
export function partsOf({ m, n, k, batches }: Extent): { numParts: number; partK: number } {
  const groups = Math.ceil(m / PART_TILE.m) * Math.ceil(n / PART_TILE.n) * batches;
  const wanted = batches > 1 ? 1 : Math.ceil(FILLING_GROUPS / groups);
  const most = Math.max(1, Math.min(wanted, Math.floor(k / LEAST_PART)));
  const partK = most === 1 ? k : Math.ceil(k / most / PART_MULTIPLE) * PART_MULTIPLE;
  return { numParts: Math.ceil(k / partK), partK };
}

/**
 * Elements of k in each window of a product too long for one dispatch: so few of its tiles would
 * then run at once that most of a chip waits, unless k is cut, too. The sum of a window is added to
 * that of those before.
 */
export function longestK(extent: Extent, maxFlops: number): number {
  const { m, n, k, batches } = extent;
  const fitting = Math.floor(maxFlops / (2 * FILLING_GROUPS * LARGEST_TILE ** 2) / PART_MULTIPLE);
  const most = Math.max(1, fitting) * PART_MULTIPLE;
  if (2 * m * n * k <= maxFlops || batches > 1 || k <= most) {
    return k;
  }
  return Math.ceil(k / Math.ceil(k / most) / PART_MULTIPLE) * PART_MULTIPLE;
}

/**
 * Operands whose every row starts and ends at a multiple of four elements, wherever the view lies.
 */
export function wideOf(call: MatmulCall): MatmulSpec['wide'] {
  const { a, b, out, m, n, k, transposeA, transposeB, epilogue } = call;
  const isWide = (view: View, strides: readonly number[]) =>
    [view.byteOffset / byteSize(view.dtype), ...strides].every((value) => value % 4 === 0);
  const likeOut = epilogue?.kind === 'crossEntropyBackward' ? [] : epilogueViews(epilogue);
  return {
    a: isWide(a, [call.aRow, transposeA ? m : k, ...call.aBatch]),
    b: isWide(b, [call.bRow, transposeB ? k : n, ...call.bBatch]),
    out: [out, ...likeOut].every((view) => isWide(view, [call.outRow, n, ...call.outBatch])),
  };
}

/**
 * out = alpha * sum of the parts + bias, and what was there where it accumulates; of the operand's
 * sums, which come in as many parts, those behind the words of out.
 */
export function sumParts(
  ctx: KernelContext,
  call: MatmulCall,
  { parts, sums, numParts }: { parts: View; sums: View | undefined; numParts: number },
): void {
  const { out, bias, aSums, bSums, m, n, outRow, accumulate } = call;
  const sumsOut = aSums ?? bSums;
  const numSums = sumsOut === undefined ? 0 : sumsOut.size;
  const spec = { out: out.dtype, bias: bias?.dtype, accumulate, hasSums: numSums > 0 };
  const key = `matmul parts ${Object.values(spec).join(' ')}`;
  const compiled = ctx.kernel(key, () => partsKernel(spec));
  const outWords = (m * n) / elementsPerWord(out.dtype);
  const words = outWords + numSums;
  const { grid, perLane } = elementwiseGrid(ctx, words);
  ctx.dispatch(compiled, {
    params: {
      words,
      n,
      out_row: outRow,
      parts: numParts,
      part: m * n,
      out_words: outWords,
      num_sums: numSums,
      alpha: call.alpha,
      per_lane: perLane,
    },
    views: [parts, ...present(bias), ...present(sums), out, ...present(sumsOut)],
    grid,
  });
}

function partsKernel({
  out,
  bias,
  accumulate,
  hasSums,
}: Pick<MatmulSpec, 'out' | 'bias' | 'accumulate'> & { readonly hasSums: boolean }): Kernel {
  const isHalf = elementsPerWord(out) === 2;
  return defineKernel({
    label: `matmul parts to ${out}${bias ? ' bias' : ''}${accumulate ? ' accumulate' : ''}${hasSums ? ' sums' : ''}`,
    bindings: [
      { name: 'x', type: 'f32', access: 'read' },
      ...(bias === undefined ? [] : [{ name: 'bias', type: bias, access: 'read' as const }]),
      ...(hasSums ? [{ name: 'sum_parts', type: 'f32' as const, access: 'read' as const }] : []),
      { name: 'out', type: out, access: 'read_write' },
      ...(hasSums ? [{ name: 'sums', type: 'f32' as const, access: 'read_write' as const }] : []),
    ],
    params: {
      words: 'u32',
      n: 'u32',
      out_row: 'u32',
      parts: 'u32',
      part: 'u32',
      per_lane: 'u32',
      out_words: 'u32',
      num_sums: 'u32',
      alpha: 'f32',
    },
    workgroupSize: ELEMENTWISE_SIZE,
    body: `
fn total(i: u32, at: u32, col: u32) -> f32 {
  var sum = 0.0;
  for (var p = 0u; p < P.parts; p++) { sum += load_x(p * P.part + i); }
  var v = P.alpha * sum;
  ${bias === undefined ? '' : 'v += load_bias(col);'}
  ${accumulate ? 'v += load_out(at);' : ''}
  return v;
}
${
  hasSums
    ? `fn add_sums(i: u32) {
  var sum = 0.0;
  for (var p = 0u; p < P.parts; p++) { sum += load_sum_parts(p * P.num_sums + i); }
  store_sums(i, sum);
}`
    : ''
}
${elementwiseMain(`${hasSums ? 'if (u >= P.out_words) { add_sums(u - P.out_words); continue; }' : ''}
      let i = ${isHalf ? '2u * u' : 'u'};
      let row = i / P.n;
      let col = i - row * P.n;
      let at = row * P.out_row + col;
      ${isHalf ? 'store2_out(at, total(i, at, col), total(i + 1u, at + 1u, col + 1u));' : 'store_out(at, total(i, at, col));'}`)}`,
  });
}

function isSameTile(a: SharedTile, b: SharedTile): boolean {
  return a.m === b.m && a.n === b.n && a.k === b.k && a.perThread === b.perThread;
}
