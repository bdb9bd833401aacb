// The choices of a matrix product for hardware: its tile, the number of parts into which k is cut,
// and which operands are loaded as vectors. Parts change the order of a sum, so their number
// depends on the shape alone, and the bits are the same whichever tile tuning chooses.

import { byteSize } from '@shardweave/dtypes';
import type { View } from '../../../../view.js';
import { defineKernel, elementsPerWord, type Kernel } from '../../kernel/kernel.js';
import type { KernelContext } from '../../queue/context.js';
import { ELEMENTWISE_SIZE, elementwiseGrid, elementwiseMain } from '../elementwise/elementwise.js';
import { present } from '../rows/rows.js';
import type { MatmulCall } from './matmul.js';
import { epilogueViews } from './matmul-epilogue.js';
import type { MatmulSpec, SharedTile } from './matmul-tiles.js';

export interface Extent {
  readonly m: number;
  readonly n: number;
  readonly k: number;
  /** How many products are computed at once. */
  readonly batches: number;
}

/**
 * The tiles, best first. `share` estimates the part of a chip's rate that a tile reaches, from its
 * loads of workgroup memory per multiply-add. It decides only where tuning has measured nothing.
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
/** The extent of the tile by which parts of k are counted, whichever tile is chosen. */
const PART_TILE = { m: 128, n: 64 };
/** The rows of the largest tile, which has as many columns. */
const LARGEST_TILE = 128;
/** The least steps of k that are worth writing and reading a part. */
const LEAST_PART = 512;
/**
 * The operations from which k is cut into windows, as many as 264 of the largest tiles do over
 * 5,776 elements of k. It is a constant, not the work that a submit may hold: windows decide the
 * order of a sum.
 */
const WINDOW_FLOPS = 50e9;
/** A number that every tile's block of k divides, so that parts begin where blocks do. */
const PART_MULTIPLE = 16;

export function chooseHardwareTile(extent: Extent, candidates: readonly SharedTile[]): SharedTile {
  const groupsOf = (tile: SharedTile) => numGroups(extent, tile);
  const cost = (tile: SharedTile) => {
    const { share } = TILES.find((t) => isSameTile(t, tile))!;
    return wasteOf(extent, tile) / (share * Math.min(1, groupsOf(tile) / FILLING_GROUPS));
  };
  return candidates.reduce((best, tile) => (cost(tile) < cost(best) ? tile : best));
}

/** The workgroups of a product, including those of its parts of k. */
export function numGroups(
  extent: Extent,
  { m, n }: { readonly m: number; readonly n: number },
): number {
  const { batches } = extent;
  return Math.ceil(extent.m / m) * Math.ceil(extent.n / n) * batches * partsOf(extent).numParts;
}

/** The area of all tiles divided by that of the output, which they may overlap. */
export function wasteOf(
  extent: Extent,
  { m, n }: { readonly m: number; readonly n: number },
): number {
  return (Math.ceil(extent.m / m) * m * Math.ceil(extent.n / n) * n) / (extent.m * extent.n);
}

/**
 * Returns into how many parts k is cut, and the length of one. Weight gradients sum over all tokens
 * into few tiles, too few to fill a chip; their k is cut as evenly as blocks allow.
 */
export function partsOf({ m, n, k, batches }: Extent): { numParts: number; partK: number } {
  const groups = Math.ceil(m / PART_TILE.m) * Math.ceil(n / PART_TILE.n) * batches;
  const wanted = batches > 1 ? 1 : Math.ceil(FILLING_GROUPS / groups);
  const most = Math.max(1, Math.min(wanted, Math.floor(k / LEAST_PART)));
  const partK = most === 1 ? k : Math.ceil(k / most / PART_MULTIPLE) * PART_MULTIPLE;
  return { numParts: Math.ceil(k / partK), partK };
}

/**
 * Returns the elements of k in one window of a product. A product that is too long for one dispatch
 * would be cut into so few tiles at once that most of a chip waits; with k cut as well, each
 * dispatch keeps enough tiles. The sum of a window is added to that of the windows before it.
 */
export function longestK(extent: Extent): number {
  const { m, n, k, batches } = extent;
  const fitting = Math.floor(
    WINDOW_FLOPS / (2 * FILLING_GROUPS * LARGEST_TILE * LARGEST_TILE) / PART_MULTIPLE,
  );
  const most = Math.max(1, fitting) * PART_MULTIPLE;
  if (2 * m * n * k <= WINDOW_FLOPS || batches > 1 || k <= most) {
    return k;
  }
  return Math.ceil(k / Math.ceil(k / most) / PART_MULTIPLE) * PART_MULTIPLE;
}

/**
 * Tells for each operand whether all of its rows start and end at multiples of four elements. The
 * rows of logits may end before, since what lies between them is free to be written.
 */
export function wideOf(call: MatmulCall): MatmulSpec['wide'] {
  const { a, b, out, m, n, k, transposeA, transposeB, epilogue } = call;
  const isWide = (view: View, strides: readonly number[]) =>
    [view.byteOffset / byteSize(view.dtype), ...strides].every((value) => value % 4 === 0);
  const isLogits = epilogue?.kind === 'crossEntropyBackward';
  const likeOut = isLogits ? [] : epilogueViews(epilogue);
  const columns = isLogits ? [] : [n];
  return {
    a: isWide(a, [call.aRow, transposeA ? m : k, ...call.aBatch]),
    b: isWide(b, [call.bRow, transposeB ? k : n, ...call.bBatch]),
    out: [out, ...likeOut].every((view) =>
      isWide(view, [call.outRow, ...columns, ...call.outBatch]),
    ),
  };
}

/**
 * Computes out = alpha * (sum of the parts) + bias, plus what `out` held if the call accumulates.
 * The same dispatch adds up the parts of an operand's sums, in the invocations after those of out.
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
