// Attention forward and backward: this file chooses the tile, and how many batches run at once
// where operands exceed a binding. Backward runs two kernels: the queries' gradients with the sums
// of dOut * out, then the gradients of keys and values. With segments the sums have a kernel of
// their own, as sumsDelta explains. Drivers on the CPU take chunks instead; see
// attention-chunks.ts.

import { byteSize } from '@shardweave/dtypes';
import type { AttentionOperands } from '../../../../kernel-calls/attention.js';
import type { KernelCalls } from '../../../../kernel-calls/kernel-calls.js';
import type { View } from '../../../../view.js';
import { type Grid, type Kernel, linearGrid } from '../../kernel/kernel.js';
import { type KernelContext, sliceView } from '../../queue/context.js';
import { deltaKernel, keysKernel, queriesKernel, sumsDelta } from './attention-backward-tiles.js';
import type { RowSide } from './attention-block.js';
import { backwardChunks, chunkBatches, forwardChunks } from './attention-chunks.js';
import { forwardKernel } from './attention-forward-tiles.js';
import { type MaskParts, maskGradient, withMaskParts } from './attention-mask.js';
import { type AttentionPart, pairParams, pairSpecOf, sharesIds } from './attention-pairs.js';
import { type AttentionSpec, attentionTile } from './attention-tile.js';
import { allPairs, computedPairs, operandBytes } from './attention-work.js';

/** WebGPU's limit of workgroups in one dimension. */
const MAX_GRID = 65535;

export function attention(ctx: KernelContext, call: KernelCalls['attention']): void {
  if (ctx.profile.isSoftware) {
    eachBatches(ctx, call, (part) => forwardChunks(ctx, part));
    return;
  }
  const spec = specOf(call, attentionTile(call.dim, { rows: call.numQueries, mostQuads: 2 }));
  eachBatches(ctx, call, (part) => {
    run(ctx, forwardKernel(spec), part, {
      views: [...inputs(part, ['q', 'k', 'v']), part.call.out, part.call.stats],
      side: 'queries',
      spec,
      products: 2,
      read: ['q', 'k', 'v'],
      written: ['out'],
    });
  });
}

export function attentionBackward(
  ctx: KernelContext,
  call: KernelCalls['attentionBackward'],
): void {
  eachBatches(ctx, call, (part) => {
    if (ctx.profile.isSoftware) {
      deltas(ctx, part);
      backwardChunks(ctx, part);
    } else {
      backwardTiles(ctx, part);
    }
  });
}

export function attentionMaskGradient(
  ctx: KernelContext,
  call: KernelCalls['attentionMaskGradient'],
): void {
  const run = (part: AttentionPart, parts: MaskParts, firstBatch: number) => {
    const views = inputs(part, ['q', 'k', 'v', 'dOut', 'stats']);
    maskGradient(ctx, part, { parts, firstBatch, views });
  };
  if (call.maskStrides[0] === 0) {
    withMaskParts(ctx, call, (parts) =>
      eachBatches(ctx, call, (part) => run(part, parts, part.first)),
    );
    return;
  }
  eachBatches(ctx, call, (part) => {
    const own = part.call as AttentionOperands as typeof call;
    withMaskParts(ctx, { ...own, batch: part.count }, (parts) => run(part, parts, 0));
  });
}

/** Stores the sums of dOut * out by row in the second half of stats. */
function deltas(ctx: KernelContext, { call, first, count, numRows }: AttentionPart): void {
  const { out, dOut, stats, numHeads: heads, numQueries: queries, dim } = call;
  const { isSoftware } = ctx.profile;
  const delta = deltaKernel({
    dtype: out.dtype,
    isWide: !isSoftware && dim % 4 === 0 && [out, dOut].every(isAtVector),
    lanes: isSoftware ? 1 : 8,
  });
  const rows = count * heads * queries;
  ctx.dispatch(ctx.kernel(delta.key, delta.build), {
    params: { first_row: first * heads * queries, num_rows: numRows, rows, heads, queries, dim },
    views: [out, dOut, stats],
    grid: linearGrid(Math.ceil(rows / delta.rows)),
  });
}

function backwardTiles(ctx: KernelContext, part: AttentionPart): void {
  const { call } = part;
  const { out, stats, dq, dk, dv, numQueries: queries, dim } = call;
  const isShared = dk.buffer === dv.buffer;
  const read = inputs(part, ['q', 'k', 'v', 'dOut']);
  const ofQueries = specOf(call, attentionTile(dim, { rows: queries, mostQuads: 2 }));
  const takesOut = sumsDelta(ofQueries);
  if (!takesOut) {
    deltas(ctx, part);
  }
  run(ctx, queriesKernel(ofQueries), part, {
    views: [...read, ...(takesOut ? [out] : []), stats, dq],
    side: 'queries',
    spec: ofQueries,
    products: 3,
    read: ['q', 'k', 'v', 'dOut', ...(takesOut ? (['out'] as const) : [])],
    written: ['dq'],
  });
  const start = Math.min(dk.byteOffset, dv.byteOffset);
  const both = {
    ...dk,
    byteOffset: start,
    size: Math.max(endOf(dk), endOf(dv)) - start / byteSize(dk.dtype),
  };
  const spec = {
    ...specOf(call, attentionTile(dim, { rows: call.numKeys, mostQuads: 1 })),
    isShared,
  };
  run(ctx, keysKernel(spec), part, {
    views: [...inputs(part, ['q', 'k', 'v', 'dOut', 'stats']), ...(isShared ? [both] : [dk, dv])],
    side: 'keys',
    spec,
    products: 4,
    read: ['q', 'k', 'v', 'dOut'],
    written: ['dk', 'dv'],
    ...(isShared
      ? {
          first: {
            dk: (dk.byteOffset - start) / byteSize(dk.dtype),
            dv: (dv.byteOffset - start) / byteSize(dv.dtype),
          },
        }
      : {}),
  });
}

function endOf({ byteOffset, size, dtype }: View): number {
  return byteOffset / byteSize(dtype) + size;
}

function specOf(call: AttentionOperands, tile: AttentionSpec['tile']): AttentionSpec {
  return {
    dtype: call.q.dtype,
    isWide: isWide(call),
    ...pairSpecOf(call),
    isShared: false,
    tile,
  };
}

/**
 * Whether a head is whole slices of eight, and all operands of the pass can be loaded and stored as
 * vectors of four.
 */
function isWide(call: AttentionOperands): boolean {
  const { q, k, v, out, dim, qStrides, kStrides, vStrides } = call;
  const { dOut, dq, dk, dv } = call as Partial<KernelCalls['attentionBackward']>;
  return (
    dim % 8 === 0 &&
    [qStrides, kStrides, vStrides].every(
      ({ batch, head, row }) => batch % 4 === 0 && head % 4 === 0 && row % 4 === 0,
    ) &&
    [q, k, v, out, dOut, dq, dk, dv].every((view) => view === undefined || isAtVector(view))
  );
}

function isAtVector({ byteOffset, dtype }: View): boolean {
  return (byteOffset / byteSize(dtype)) % 4 === 0;
}

/** Calls `body` with runs of batches whose operands bind at once. */
function eachBatches(
  ctx: KernelContext,
  given: AttentionOperands | KernelCalls['attentionBackward' | 'attentionMaskGradient'],
  body: (part: AttentionPart) => void,
): void {
  const call = given as KernelCalls['attentionBackward'];
  const { batch, numHeads, numQueries, numKeys, dim } = call;
  const outStride = numQueries * numHeads * dim;
  const numRows = batch * numHeads * numQueries;
  const strides = {
    q: call.qStrides.batch,
    dq: call.qStrides.batch,
    k: call.kStrides.batch,
    dk: call.kStrides.batch,
    v: call.vStrides.batch,
    dv: call.vStrides.batch,
    out: outStride,
    dOut: outStride,
    mask: call.maskStrides[0],
    dMask: call.maskStrides[0],
    querySegments: numQueries,
    keySegments: numKeys,
  };
  const widest = Math.max(...Object.values(strides));
  const dtypes = [call.q.dtype];
  for (const mask of 'dMask' in given ? [given.mask, given.dMask] : [given.mask]) {
    if (mask !== undefined) {
      dtypes.push(mask.dtype);
    }
  }
  const step = Math.min(
    ctx.profile.isSoftware ? chunkBatches(ctx, call) : MAX_GRID,
    ctx.windowUnits(dtypes, widest, { op: 'attention, one of its batches' }),
  );
  if (step >= batch) {
    body({ call, first: 0, count: batch, numRows });
    return;
  }
  for (let first = 0; first < batch; first += step) {
    const count = Math.min(step, batch - first);
    const views = Object.entries(strides).flatMap(([name, stride]) => {
      const view = call[name as 'q'] as View | undefined;
      if (view === undefined) {
        return [];
      }
      const size = view.size - (batch - count) * stride;
      return [[name, sliceView(view, first * stride, size)]];
    });
    body({ call: { ...call, ...Object.fromEntries(views) }, first, count, numRows });
  }
}

function inputs(
  { call }: AttentionPart,
  names: readonly ('q' | 'k' | 'v' | 'dOut' | 'stats')[],
): View[] {
  const querySegments = sharesIds(call) ? undefined : call.querySegments;
  const extra = [call.mask, querySegments, call.keySegments];
  return [...names.map((name) => call[name]), ...extra.filter((view) => view !== undefined)];
}

function run(
  ctx: KernelContext,
  kernel: { readonly key: string; build(): Kernel },
  { call, first, count, numRows }: AttentionPart,
  options: {
    readonly views: readonly View[];
    readonly side: RowSide;
    readonly spec: AttentionSpec;
    /** How many products of all pairs with all dimensions the kernel computes. */
    readonly products: number;
    readonly read: Parameters<typeof operandBytes>[2];
    readonly written: Parameters<typeof operandBytes>[2];
    readonly first?: { readonly dk: number; readonly dv: number };
  },
): void {
  const { numHeads, dim } = call;
  const { side, spec, read, written } = options;
  const [length, heads] =
    side === 'queries' ? [call.numQueries, numHeads] : [call.numKeys, call.numKvHeads];
  const tile = { rows: 8 * spec.tile.down, columns: 4 * spec.tile.across };
  const grid: Grid = [Math.ceil(length / tile.rows), heads, count];
  const flopsOf = (pairs: number) => 2 * options.products * count * numHeads * pairs * dim;
  ctx.dispatch(ctx.kernel(kernel.key, kernel.build), {
    params: Object.assign(pairParams(call, { first, numRows }), {
      dk_first: options.first?.dk ?? 0,
      dv_first: options.first?.dv ?? 0,
    }),
    views: options.views,
    grid,
    flops: flopsOf(computedPairs(call, side, tile)),
    // The tiles of a causal head do not take equally long; the longest walks all blocks.
    longestFlops: () => flopsOf(allPairs(call, side, tile)),
    moved: () => ({
      read: operandBytes(call, count, read),
      written: operandBytes(call, count, written),
    }),
  });
}
