// Attention for drivers that run on the CPU takes chunks of queries through the matrix products
// that are tuned for such drivers, and keeps the scores of one chunk in scratch. The tiles for
// hardware need barriers and workgroup memory, which cost a CPU driver seconds of compiling and
// most of its speed. A surprise: the products multiply hidden keys within a chunk's range by the
// weight 0, so a NaN in such a key or value reaches the result.

import { byteSize } from '@shardweave/dtypes';
import type { AttentionOperands, HeadStrides } from '../../../../kernel-calls/attention.js';
import type { View } from '../../../../view.js';
import { BINDING_ALIGNMENT } from '../../kernel/clashes.js';
import { type KernelContext, sliceView } from '../../queue/context.js';
import { cast, fill } from '../elementwise/cast.js';
import { copyStrided } from '../elementwise/copy.js';
import { matmul } from '../matmul/matmul.js';
import { type Chunk, slope, weigh } from './attention-chunk-rows.js';
import type { AttentionPart } from './attention-pairs.js';

/** The most queries of a chunk, of which there are fewer where scores exceed SCORE_BYTES. */
const CHUNK_ROWS = 128;
const SCORE_BYTES = 32 * 1024 * 1024;
/** The queries that a chunk has room for at least: fewer batches run at once before that. */
const LEAST_ROWS = 16;

export function forwardChunks(ctx: KernelContext, part: AttentionPart): void {
  const { call } = part;
  const { out, v, dim, numQueries, numHeads } = call;
  eachChunk(ctx, part, (chunk) => {
    const { row0, rows, first, span } = chunk;
    ctx.withScratch('f32', part.count * numHeads * rows * span, (scores) => {
      product(ctx, part, chunk, { left: call.q, right: call.k, scores, alpha: call.scale });
      weigh(ctx, part, chunk, scores);
      eachMember(call, (member) => {
        matmul(ctx, {
          ...base(part),
          ...scoreSide(part, chunk, { scores, member }, 'a'),
          b: sliceFrom(v, first * call.vStrides.row),
          bRow: call.vStrides.row,
          bBatch: [call.vStrides.batch, call.vStrides.head],
          out: sliceFrom(out, (row0 * numHeads + member) * dim),
          outRow: numHeads * dim,
          outBatch: [numQueries * numHeads * dim, groupOf(call) * dim],
          m: rows,
          n: dim,
          k: span,
        });
      });
    });
  });
}

export function backwardChunks(ctx: KernelContext, part: AttentionPart): void {
  const { call, count } = part;
  const { numKvHeads, numKeys, dim } = call;
  if (isOneChunk(ctx, part)) {
    eachChunk(ctx, part, (chunk) => {
      withScores(ctx, part, chunk, (scores, slopes) => {
        const dk = { view: call.dk, strides: call.kStrides, isSum: false };
        const dv = { view: call.dv, strides: call.vStrides, isSum: false };
        backwardChunk(ctx, part, chunk, { scores, slopes, dk, dv });
      });
    });
    return;
  }
  const size = count * numKvHeads * numKeys * dim;
  const strides = { batch: numKvHeads * numKeys * dim, head: numKeys * dim, row: dim };
  ctx.withScratch('f32', size, (dk) => {
    ctx.withScratch('f32', size, (dv) => {
      fill(ctx, { out: dk, value: 0 });
      fill(ctx, { out: dv, value: 0 });
      eachChunk(ctx, part, (chunk) => {
        withScores(ctx, part, chunk, (scores, slopes) => {
          backwardChunk(ctx, part, chunk, {
            scores,
            slopes,
            dk: { view: dk, strides, isSum: true },
            dv: { view: dv, strides, isSum: true },
          });
        });
      });
      storeRows(ctx, part, { from: dv, to: call.dv, strides: call.vStrides });
    });
    storeRows(ctx, part, { from: dk, to: call.dk, strides: call.kStrides });
  });
}

/** Where a chunk's products store gradients of keys or values; `isSum` adds to earlier chunks'. */
interface KeySums {
  readonly view: View;
  readonly strides: HeadStrides;
  readonly isSum: boolean;
}

/** Whether one product gives a key's whole gradient, so that no sums over chunks are needed. */
function isOneChunk(ctx: KernelContext, part: AttentionPart): boolean {
  let isWhole = groupOf(part.call) === 1;
  eachChunk(ctx, part, ({ rows, span }) => {
    isWhole &&= rows === part.call.numQueries && span === part.call.numKeys;
  });
  return isWhole;
}

/** Calls `body` with two scratch matrices of the size of a chunk's scores. */
function withScores(
  ctx: KernelContext,
  { call, count }: AttentionPart,
  { rows, span }: Chunk,
  body: (scores: View, slopes: View) => void,
): void {
  const size = count * call.numHeads * rows * span;
  ctx.withScratch('f32', size, (scores) => {
    ctx.withScratch('f32', size, (slopes) => body(scores, slopes));
  });
}

function backwardChunk(
  ctx: KernelContext,
  part: AttentionPart,
  chunk: Chunk,
  views: {
    readonly scores: View;
    readonly slopes: View;
    readonly dk: KeySums;
    readonly dv: KeySums;
  },
): void {
  const { call } = part;
  const { dim, scale, numHeads, numQueries, qStrides } = call;
  const { scores, slopes, dk, dv } = views;
  const { row0, rows, first, span } = chunk;
  product(ctx, part, chunk, { left: call.q, right: call.k, scores, alpha: scale });
  product(ctx, part, chunk, { left: call.dOut, right: call.v, scores: slopes, alpha: 1 });
  slope(ctx, part, chunk, { scores, slopes });
  eachMember(call, (member) => {
    const ofKeys = ({ view, strides, isSum }: KeySums) => ({
      out: sliceFrom(view, first * strides.row),
      outRow: strides.row,
      outBatch: [strides.batch, strides.head] as const,
      m: span,
      n: dim,
      k: rows,
      transposeA: true,
      accumulate: isSum,
    });
    matmul(ctx, {
      ...base(part),
      ...scoreSide(part, chunk, { scores, member }, 'a'),
      b: sliceFrom(call.dOut, (row0 * numHeads + member) * dim),
      bRow: numHeads * dim,
      bBatch: [numQueries * numHeads * dim, groupOf(call) * dim],
      ...ofKeys(dv),
    });
    const q = sliceFrom(call.q, row0 * qStrides.row + member * qStrides.head);
    const qBatch = [qStrides.batch, groupOf(call) * qStrides.head] as const;
    matmul(ctx, {
      ...base(part),
      ...scoreSide(part, chunk, { scores: slopes, member }, 'a'),
      b: q,
      bRow: qStrides.row,
      bBatch: qBatch,
      alpha: scale,
      ...ofKeys(dk),
    });
    matmul(ctx, {
      ...base(part),
      ...scoreSide(part, chunk, { scores: slopes, member }, 'a'),
      b: sliceFrom(call.k, first * call.kStrides.row),
      bRow: call.kStrides.row,
      bBatch: [call.kStrides.batch, call.kStrides.head],
      out: sliceFrom(call.dq, row0 * qStrides.row + member * qStrides.head),
      outRow: qStrides.row,
      outBatch: qBatch,
      m: rows,
      n: dim,
      k: span,
      alpha: scale,
    });
  });
}

/** Computes scores = alpha * left right^T. `left` is q with k as `right`, or dOut with v. */
function product(
  ctx: KernelContext,
  part: AttentionPart,
  chunk: Chunk,
  options: {
    readonly left: View;
    readonly right: View;
    readonly scores: View;
    readonly alpha: number;
  },
): void {
  const { call } = part;
  const { left, right, scores, alpha } = options;
  const { numHeads, numQueries, dim } = call;
  const dense = { batch: numQueries * numHeads * dim, head: dim, row: numHeads * dim };
  const a: HeadStrides = left === call.q ? call.qStrides : dense;
  const b = right === call.k ? call.kStrides : call.vStrides;
  eachMember(call, (member) => {
    matmul(ctx, {
      ...base(part),
      a: sliceFrom(left, chunk.row0 * a.row + member * a.head),
      aRow: a.row,
      aBatch: [a.batch, groupOf(call) * a.head],
      b: sliceFrom(right, chunk.first * b.row),
      bRow: b.row,
      bBatch: [b.batch, b.head],
      transposeB: true,
      ...scoreSide(part, chunk, { scores, member }, 'out'),
      m: chunk.rows,
      n: chunk.span,
      k: dim,
      alpha,
    });
  });
}

/** The scores of one member of each group as a matmul operand [batch, kvHeads, rows, span]. */
function scoreSide<Side extends 'a' | 'out'>(
  { call }: AttentionPart,
  { rows, span }: Chunk,
  { scores, member }: { readonly scores: View; readonly member: number },
  side: Side,
) {
  const matrix = rows * span;
  return {
    [side]: sliceFrom(scores, member * matrix),
    [`${side}Row`]: span,
    [`${side}Batch`]: [call.numHeads * matrix, groupOf(call) * matrix],
  } as { [K in Side]: View } & { [K in `${Side}Row`]: number } & {
    [K in `${Side}Batch`]: readonly [number, number];
  };
}

function base({ call, count }: AttentionPart) {
  return {
    bias: undefined,
    transposeA: false,
    transposeB: false,
    batch: [count, call.numKvHeads] as const,
    alpha: 1,
    accumulate: false,
  };
}

function groupOf({ numHeads, numKvHeads }: AttentionOperands): number {
  return numHeads / numKvHeads;
}

/**
 * Calls `body` for each query head of a group. One product cannot take them all, as matmul has two
 * batch dimensions and they would be a third.
 */
function eachMember(call: AttentionOperands, body: (member: number) => void): void {
  for (let member = 0; member < groupOf(call); member++) {
    body(member);
  }
}

function sliceFrom(view: View, start: number): View {
  return sliceView(view, start, view.size - start);
}

/** Returns how many batches run at once, so that a chunk's scores and sums of dk and dv bind. */
export function chunkBatches(ctx: KernelContext, call: AttentionOperands): number {
  const { numHeads, numKvHeads, numKeys, dim } = call;
  const sums = ctx.windowUnits(['f32'], Math.max(numHeads, numKvHeads * dim) * numKeys, {
    op: 'attention, sums of one of its batches',
  });
  const rowBytes = 4 * numHeads * numKeys;
  return Math.max(1, Math.min(sums, Math.floor(scoreBytes(ctx) / (rowBytes * LEAST_ROWS))));
}

function scoreBytes(ctx: KernelContext): number {
  return Math.min(SCORE_BYTES, ctx.profile.maxBindingBytes - BINDING_ALIGNMENT);
}

function eachChunk(
  ctx: KernelContext,
  { call, count }: AttentionPart,
  body: (chunk: Chunk) => void,
): void {
  const { numQueries, numHeads, numKeys, isCausal, window, queryOffset } = call;
  const rowBytes = 4 * count * numHeads * numKeys;
  const fitting = Math.max(1, Math.min(CHUNK_ROWS, Math.floor(scoreBytes(ctx) / rowBytes)));
  for (let row0 = 0; row0 < numQueries; row0 += fitting) {
    const rows = Math.min(fitting, numQueries - row0);
    const from = queryOffset + row0;
    const last = from + rows - 1;
    const start = window > 0 ? from - window + 1 : 0;
    const ahead = window > 0 ? last + window : numKeys;
    // A chunk has at least one key, whose weights are 0 where its queries see nothing.
    const first = Math.min(Math.max(start, 0), numKeys - 1);
    const end = Math.max(first + 1, Math.min(isCausal ? last + 1 : ahead, numKeys));
    body({ row0, rows, first, span: end - first });
  }
}

/** Stores dense f32 rows [batch, kvHeads, keys, dim] as an operand's gradient, in its dtype. */
function storeRows(
  ctx: KernelContext,
  { call, count }: AttentionPart,
  { from, to, strides }: { readonly from: View; readonly to: View; readonly strides: HeadStrides },
): void {
  const { numKvHeads, numKeys, dim } = call;
  const store = (x: View) =>
    copyStrided(ctx, {
      x,
      out: to,
      shape: [count, numKvHeads, numKeys, dim],
      xOffset: 0,
      xStrides: [numKvHeads * numKeys * dim, numKeys * dim, dim, 1],
      outOffset: 0,
      outStrides: [strides.batch, strides.head, strides.row, 1],
    });
  if (byteSize(to.dtype) === 4) {
    store(from);
    return;
  }
  ctx.withScratch(to.dtype, from.size, (narrow) => {
    cast(ctx, { x: from, out: narrow });
    store(narrow);
  });
}
