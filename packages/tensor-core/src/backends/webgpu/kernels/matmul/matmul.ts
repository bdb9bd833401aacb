// Batched matrix products of strided, optionally transposed operands. This file chooses the tile,
// cuts operands that exceed a binding into blocks, and handles 16-bit outputs whose rows share
// words.

import { byteSize } from '@shardweave/dtypes';
import { LimitError } from '../../../../errors.js';
import type { KernelCalls } from '../../../../kernel-calls/kernel-calls.js';
import { hasWideLogits, runEpilogue, slopesOf, sumsOf } from '../../../../kernel-calls/matmul.js';
import type { View } from '../../../../view.js';
import { BINDING_ALIGNMENT } from '../../kernel/clashes.js';
import { elementsPerWord } from '../../kernel/kernel.js';
import { type KernelContext, sliceView } from '../../queue/context.js';
import { cast, fill } from '../elementwise/cast.js';
import { binary, unary, unaryBackward } from '../elementwise/elementwise.js';
import { crossEntropyBackward } from '../rows/cross-entropy.js';
import { reduceInto } from '../rows/reduce.js';
import { present } from '../rows/rows.js';
import { epilogueName, epilogueParams, epilogueText, epilogueViews } from './matmul-epilogue.js';
import {
  chooseHardwareTile,
  HARDWARE_TILES,
  longestK,
  partsOf,
  sumParts,
  wideOf,
} from './matmul-hardware.js';
import { matrixTiles } from './matmul-matrix.js';
import { blockDepth } from './matmul-shared.js';
import { isHardwareTile, matmulKernel, type Tile, tileExtent, tileName } from './matmul-tiles.js';

export type MatmulCall = KernelCalls['matmul'];

/** WebGPU's limit of workgroups in one dimension. */
const MAX_GRID = 65535;

/**
 * The classes of products by operations: up to cubes of 203, 406 and 812. They are tuned apart,
 * because the best tile for 512 lost a third of the speed at 256.
 */
const SIZE_CLASSES = [
  { name: 'small', below: 2 ** 24 },
  { name: 'medium', below: 2 ** 27 },
  { name: 'large', below: 2 ** 30 },
];

/** The rows of the smallest tile that also sums an operand. */
const LEAST_SUMMED = 64;

/** The values for tiles of CPU drivers, which do not cut k and load operands element by element. */
const WHOLE = { numParts: 1, partK: 0 };
const NOT_WIDE = { a: false, b: false, out: false };

/**
 * The multiply-adds, m * n * k * batches, from which the large tile's 0.6 s of compiling on
 * lavapipe pays off within some steps.
 */
const WORTH_COMPILING = 2 ** 20;

/**
 * Returns the tiles that a product may use, the best for large products first. Tuning measures
 * them; without it `defaultTile` chooses. Tiles of matrix units come last. Only a measured choice
 * takes them.
 */
export function candidateTiles(
  ctx: KernelContext,
  { a, b, aSums, bSums }: Pick<MatmulCall, 'a' | 'b' | 'aSums' | 'bSums'>,
): readonly Tile[] {
  const { isSoftware, subgroupSize, maxInvocations, maxWorkgroupBytes } = ctx.profile;
  if (!isSoftware) {
    const hasSums = aSums !== undefined || bSums !== undefined;
    const shared = HARDWARE_TILES.filter(
      (t) =>
        // In a smaller tile the operand's sums would add a quarter to a lane's few multiply-adds.
        !(hasSums && t.m < LEAST_SUMMED) &&
        (t.m * t.n) / (t.perThread * t.perThread) <= maxInvocations &&
        // The 8 is for the rows of both blocks, which may be longer by four elements.
        4 * blockDepth(t, { a: a.dtype, b: b.dtype }) * (t.m + t.n + 8) <= maxWorkgroupBytes,
    );
    const isF16 = a.dtype === 'f16' && b.dtype === 'f16';
    return isF16 ? [...shared, ...matrixTiles(ctx.profile)] : shared;
  }
  const direct: Tile[] = [
    { kind: 'direct', m: 8, n: 8, lanes: 8 },
    { kind: 'direct', m: 4, n: 4, lanes: 8 },
  ];
  if (subgroupSize === undefined || subgroupSize > 16) {
    return direct;
  }
  return [
    ...direct,
    { kind: 'broadcast', m: 16, n: 2, lanes: subgroupSize },
    { kind: 'broadcast', m: 32, n: 2, lanes: subgroupSize },
  ];
}

export function matmul(ctx: KernelContext, call: MatmulCall): void {
  if (!endsItself(ctx, call)) {
    if (hasWideLogits(call)) {
      ctx.withScratch('f32', call.out.size, (logits) => {
        matmul(ctx, { ...call, out: logits, epilogue: undefined });
        crossEntropyBackward(ctx, slopesOf(call, logits));
      });
      return;
    }
    matmul(ctx, { ...call, epilogue: undefined });
    runEpilogue(call, {
      binary: (own) => binary(ctx, own),
      unary: (own) => unary(ctx, own),
      unaryBackward: (own) => unaryBackward(ctx, own),
      crossEntropyBackward: (own) => crossEntropyBackward(ctx, own),
    });
    return;
  }
  if (!canSum(ctx, call)) {
    matmul(ctx, { ...call, aSums: undefined, bSums: undefined });
    for (const { x, out, inner } of sumsOf(call)) {
      reduceInto(ctx, { kind: 'sum', x, out, outer: 1, dim: call.k, inner });
    }
    return;
  }
  if (canStoreWords(call)) {
    matmulWhole(ctx, call);
    return;
  }
  // Rows of this 16-bit output, which is dense, begin in the middle of words.
  const { out, m, n, batch } = call;
  ctx.withScratch('f32', out.size, (wide) => {
    matmulWhole(ctx, {
      ...call,
      out: wide,
      outRow: n,
      outBatch: [m * n * batch[1], m * n],
      accumulate: false,
    });
    if (!call.accumulate) {
      cast(ctx, { x: wide, out });
      return;
    }
    const dense = { shape: [out.size], aStrides: [1], bStrides: [1] };
    binary(ctx, { kind: 'add', a: out, b: wide, out, ...dense });
  });
}

/**
 * Whether the product's own kernel stores the sums of an operand, if the call asks for any. CPU
 * drivers gain nothing by it.
 */
function canSum(ctx: KernelContext, call: MatmulCall): boolean {
  const all = sumsOf(call);
  if (all.length === 0) {
    return true;
  }
  const { a, b, out, m, n, k } = call;
  const isOneBlock =
    ctx.fits([a, b, { ...out, dtype: 'f32' }]) && longestK({ m, n, k, batches: 1 }) === k;
  return !ctx.profile.isSoftware && isOneBlock && all.every((sums) => sums.out.dtype === 'f32');
}

/**
 * Whether the product's own kernel runs the epilogue, if the call has one. CPU drivers gain nothing
 * by it, and where k is cut, the sums are not yet complete when the kernel stores them.
 */
function endsItself(ctx: KernelContext, call: MatmulCall): boolean {
  const { epilogue, a, b, out, m, n, k, batch } = call;
  if (epilogue === undefined) {
    return true;
  }
  const extent = { m, n, k, batches: batch[0] * batch[1] };
  const views = [out, ...epilogueViews(epilogue)];
  const isLikeOut = views.every(({ dtype }) => dtype === out.dtype);
  return (
    !ctx.profile.isSoftware &&
    (isLikeOut || epilogue.kind === 'crossEntropyBackward') &&
    (elementsPerWord(out.dtype) === 1 || wideOf(call).out) &&
    ctx.fits([a, b, ...views]) &&
    longestK(extent) === k &&
    partsOf(extent).numParts === 1
  );
}

/** Returns the class of products that share a choice of tile, such as `NT f32 f32 f32 large`. */
export function shapeClass(call: MatmulCall): string {
  const { a, b, out, transposeA, transposeB, m, n, k } = call;
  const letters = `${transposeA ? 'T' : 'N'}${transposeB ? 'T' : 'N'}`;
  const size = sizeClass(m, n, k);
  return `${letters} ${a.dtype} ${b.dtype} ${out.dtype} ${size}`;
}

/** Computes a product with a given tile, for tuning. */
export function matmulWithTile(ctx: KernelContext, call: MatmulCall, tile: Tile): void {
  matmulBlocks(ctx, call, tile);
}

function sizeClass(m: number, n: number, k: number): string {
  if (m <= 16) {
    return 'flat';
  }
  const flops = 2 * m * n * k;
  return SIZE_CLASSES.find(({ below }) => flops < below)?.name ?? 'huge';
}

function canStoreWords(call: MatmulCall): boolean {
  const { out, n, outRow, outBatch } = call;
  if (elementsPerWord(out.dtype) === 1 || wideOf(call).out) {
    return true;
  }
  return [n, outRow, ...outBatch].every((value) => value % 2 === 0);
}

function matmulWhole(ctx: KernelContext, call: MatmulCall): void {
  const candidates = candidateTiles(ctx, call);
  const { matmulChoices } = ctx;
  const chosen = matmulChoices.isEmpty ? undefined : matmulChoices.get(shapeClass(call));
  const known = chosen === undefined ? chosen : candidates.find((t) => tileName(t) === chosen);
  matmulBlocks(ctx, call, known ?? defaultTile(ctx, call, candidates));
}

/** Returns the tile for a product that no tuning has measured. */
export function defaultTile(
  ctx: KernelContext,
  call: MatmulCall,
  candidates: readonly Tile[],
): Tile {
  const { m, n, k, batch } = call;
  if (ctx.profile.isSoftware) {
    // The small tile compiles four times faster, and compiling is most of a small product's cost.
    const isWorthIt = m >= 32 && n >= 64 && m * n * k * batch[0] * batch[1] >= WORTH_COMPILING;
    return isWorthIt ? candidates[0]! : candidates[1]!;
  }
  return chooseHardwareTile(
    { m, n, k, batches: batch[0] * batch[1] },
    candidates.filter((t) => t.kind === 'shared'),
  );
}

/** An operand as rows of its storage, and the elements from one row to the next. */
interface Rows {
  readonly view: View;
  readonly rowStride: number;
}

/**
 * Computes a product, and cuts operands that exceed a binding into blocks of their stored rows,
 * which gives windows of m, n and k. Over several windows of k the output accumulates, in f32 where
 * it is 16-bit.
 */
function matmulBlocks(ctx: KernelContext, call: MatmulCall, tile: Tile): void {
  const { a, b, out, m, n, k, transposeA, transposeB, aRow, bRow, outRow } = call;
  const limit = ctx.profile.maxBindingBytes - BINDING_ALIGNMENT;
  const extent = { m, n, k, batches: call.batch[0] * call.batch[1] };
  const kMost = ctx.profile.isSoftware ? k : longestK(extent);
  if (ctx.fits([a, b, out]) && kMost === k) {
    dispatchBlock(ctx, call, tile);
    return;
  }
  if (extent.batches > 1) {
    eachBatch(ctx, call, tile);
    return;
  }
  const rowsOf = (rows: Rows): number => {
    const bytes = rows.rowStride * byteSize(rows.view.dtype);
    // The count is even, so that blocks of 16-bit outputs start at whole words.
    const count = Math.floor(limit / bytes / 2) * 2;
    if (count > 0) {
      return count;
    }
    if (rows.view.size * byteSize(rows.view.dtype) <= limit) {
      return Number.POSITIVE_INFINITY;
    }
    throw new LimitError(
      `matmul: expected two rows of at most ${limit} bytes, got ${2 * bytes}. The device binds no more at once.`,
      { requestedBytes: 2 * bytes, limitBytes: limit },
    );
  };
  const aRows = rowsOf({ view: a, rowStride: aRow });
  const bRows = rowsOf({ view: b, rowStride: bRow });
  const mStep = Math.min(m, rowsOf({ view: out, rowStride: outRow }), transposeA ? m : aRows);
  const nStep = Math.min(n, transposeB ? bRows : n);
  const kStep = Math.min(kMost, transposeA ? aRows : k, transposeB ? k : bRows);
  if (kStep < k && elementsPerWord(out.dtype) === 2) {
    accumulateWide(ctx, call, tile, { mStep, nStep, kStep });
    return;
  }
  eachBlock(ctx, call, tile, { mStep, nStep, kStep });
}

/**
 * Runs as many batches at once as bind: several outer ones, or inner ones of a single outer one.
 */
function eachBatch(ctx: KernelContext, call: MatmulCall, tile: Tile): void {
  const { a, b, out, m, n, k, transposeA, transposeB, aRow, bRow, outRow } = call;
  const [outer, inner] = call.batch;
  const axis = outer > 1 ? 0 : 1;
  const operand = (view: View, strides: readonly [number, number], extent: number) => ({
    view,
    stride: strides[axis],
    span: axis === 0 ? (inner - 1) * strides[1] + extent : extent,
  });
  const operands = [
    operand(a, call.aBatch, transposeA ? (k - 1) * aRow + m : (m - 1) * aRow + k),
    operand(b, call.bBatch, transposeB ? (n - 1) * bRow + k : (k - 1) * bRow + n),
    operand(out, call.outBatch, (m - 1) * outRow + n),
  ] as const;
  const total = call.batch[axis];
  const steps = operands.map(({ view, stride, span }) => {
    const spare = ctx.windowElements(view.dtype) - span;
    return spare >= 0 && stride === 0 ? total : Math.floor(spare / stride) + 1;
  });
  const step = Math.max(1, Math.min(total, ...steps)); // spare / 0 is -Infinity where it is below 0
  for (let first = 0; first < total; first += step) {
    const count = Math.min(step, total - first);
    const [aPart, bPart, outPart] = operands.map(({ view, stride, span }) =>
      sliceView(view, first * stride, (count - 1) * stride + span),
    );
    const batch = axis === 0 ? ([count, inner] as const) : ([1, count] as const);
    matmulBlocks(ctx, { ...call, a: aPart!, b: bPart!, out: outPart!, batch }, tile);
  }
}

interface Steps {
  readonly mStep: number;
  readonly nStep: number;
  readonly kStep: number;
}

function eachBlock(ctx: KernelContext, call: MatmulCall, tile: Tile, steps: Steps): void {
  const { a, b, out, bias, m, n, k, transposeA, transposeB, aRow, bRow, outRow } = call;
  for (let m0 = 0; m0 < m; m0 += steps.mStep) {
    const mSize = Math.min(steps.mStep, m - m0);
    for (let n0 = 0; n0 < n; n0 += steps.nStep) {
      const nSize = Math.min(steps.nStep, n - n0);
      for (let k0 = 0; k0 < k; k0 += steps.kStep) {
        const kSize = Math.min(steps.kStep, k - k0);
        const block = (view: View, stride: number, range: readonly number[]) => {
          const [row, col, numRows, numCols] = range as [number, number, number, number];
          return sliceView(view, row * stride + col, (numRows - 1) * stride + numCols);
        };
        dispatchBlock(
          ctx,
          {
            ...call,
            a: block(a, aRow, transposeA ? [k0, m0, kSize, mSize] : [m0, k0, mSize, kSize]),
            b: block(b, bRow, transposeB ? [n0, k0, nSize, kSize] : [k0, n0, kSize, nSize]),
            out: block(out, outRow, [m0, n0, mSize, nSize]),
            bias: k0 === 0 && bias !== undefined ? sliceView(bias, n0, nSize) : undefined,
            m: mSize,
            n: nSize,
            k: kSize,
            accumulate: call.accumulate || k0 > 0,
          },
          tile,
        );
      }
    }
  }
}

/** Sums a 16-bit output over windows of k in f32, block of rows by block, and rounds it once. */
function accumulateWide(ctx: KernelContext, call: MatmulCall, tile: Tile, steps: Steps): void {
  const { a, out, m, n, aRow, outRow, transposeA } = call;
  const limit = ctx.profile.maxBindingBytes - BINDING_ALIGNMENT;
  const mStep = Math.min(steps.mStep, Math.max(2, Math.floor(limit / (4 * outRow) / 2) * 2));
  for (let m0 = 0; m0 < m; m0 += mStep) {
    const mSize = Math.min(mStep, m - m0);
    const size = (mSize - 1) * outRow + n;
    const target = sliceView(out, m0 * outRow, size);
    ctx.withScratch('f32', size, (wide) => {
      // The elements between the ends of rows must keep what they hold.
      if (call.accumulate || outRow !== n) {
        cast(ctx, { x: target, out: wide });
      } else {
        fill(ctx, { out: wide, value: 0 });
      }
      const aBlock = transposeA
        ? sliceView(a, m0, a.size - m0)
        : sliceView(a, m0 * aRow, a.size - m0 * aRow);
      eachBlock(ctx, { ...call, a: aBlock, out: wide, m: mSize }, tile, { ...steps, mStep: mSize });
      cast(ctx, { x: wide, out: target });
    });
  }
}

function dispatchBlock(ctx: KernelContext, call: MatmulCall, tile: Tile): void {
  const { m, n, k, batch } = call;
  const extent = { m, n, k, batches: batch[0] * batch[1] };
  const { numParts, partK } = isHardwareTile(tile) ? partsOf(extent) : WHOLE;
  if (numParts === 1 || numParts * m * n > ctx.windowElements('f32')) {
    dispatchParts(ctx, call, { tile, numParts: 1, partK: k });
    return;
  }
  const { aSums, bSums } = call;
  ctx.withScratch('f32', numParts * m * n, (parts) => {
    const part = { out: parts, outRow: n, bias: undefined, alpha: 1, accumulate: false };
    const run = (own: Pick<MatmulCall, 'aSums' | 'bSums'>, sums?: View) => {
      dispatchParts(ctx, { ...call, ...part, ...own }, { tile, numParts, partK });
      sumParts(ctx, call, { parts, sums, numParts });
    };
    if (aSums === undefined && bSums === undefined) {
      run({});
      return;
    }
    ctx.withScratch('f32', numParts * (aSums === undefined ? n : m), (sums) =>
      run({ aSums: aSums && sums, bSums: bSums && sums }, sums),
    );
  });
}

function dispatchParts(
  ctx: KernelContext,
  call: MatmulCall,
  { tile, numParts, partK }: { tile: Tile; numParts: number; partK: number },
): void {
  const { a, b, out, bias, aSums, bSums, m, n, k, transposeA, transposeB, batch, epilogue } = call;
  const sums = aSums ?? bSums;
  const wide = isHardwareTile(tile) ? wideOf(call) : NOT_WIDE;
  const spec = {
    a: a.dtype,
    b: b.dtype,
    out: out.dtype,
    bias: bias?.dtype,
    accumulate: call.accumulate,
    sums: aSums !== undefined ? 'a' : bSums !== undefined ? 'b' : undefined,
    transposeA,
    transposeB,
    hasShaderF16: ctx.profile.hasShaderF16,
  } as const;
  const operands = `${spec.a} ${spec.b} ${spec.out} ${spec.bias} ${spec.sums}`;
  const layout = `${transposeA} ${transposeB} ${wide.a} ${wide.b} ${wide.out} ${spec.accumulate}`;
  const key = `matmul ${operands} ${layout} ${epilogueName(epilogue)} ${tileName(tile)}`;
  const compiled = ctx.kernel(key, () => {
    const ending = epilogueText(epilogue, { dtype: out.dtype, isWide: wide.out });
    return matmulKernel({ ...spec, wide, epilogue: ending }, tile);
  });
  const [tileM, tileN] = tileExtent(tile);
  const numBatches = batch[0] * batch[1];
  // Only a product of one batch has parts, so that z counts either batches or parts.
  for (let first = 0; first < numBatches; first += MAX_GRID) {
    ctx.dispatch(compiled, {
      params: {
        m,
        n,
        k,
        a_row: call.aRow,
        b_row: call.bRow,
        out_row: call.outRow,
        first_batch: first,
        batch_inner: batch[1],
        a_outer: call.aBatch[0],
        a_inner: call.aBatch[1],
        b_outer: call.bBatch[0],
        b_inner: call.bBatch[1],
        out_outer: call.outBatch[0],
        out_inner: call.outBatch[1],
        parts: numParts,
        part_k: partK,
        out_part: m * n,
        alpha: call.alpha,
        ...epilogueParams(call),
      },
      views: [a, b, ...present(bias), out, ...epilogueViews(epilogue), ...present(sums)],
      grid: [
        Math.ceil(n / tileN),
        Math.ceil(m / tileM),
        numParts * Math.min(MAX_GRID, numBatches - first),
      ],
      flops: 2 * m * n * k * Math.min(MAX_GRID, numBatches - first),
    });
  }
}
