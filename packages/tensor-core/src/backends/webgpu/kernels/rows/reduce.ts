// Reductions over the middle axis of [outer, dim, inner]. A long axis is cut into parts that are
// reduced to f32 partial results, and another pass reduces those. The order depends only on sizes
// and device.

import type { KernelCalls } from '../../../../kernel-calls/kernel-calls.js';
import { ofKind } from '../../../../kind-table.js';
import type { View } from '../../../../view.js';
import { defineKernel, type Kernel, linearGrid } from '../../kernel/kernel.js';
import { LOAD_NS } from '../../kernel/lane-time.js';
import { INTEGER_DIVIDE, mainHead } from '../../kernel/wgsl.js';
import type { KernelContext } from '../../queue/context.js';
import { eachRowBlock } from '../../queue/row-blocks.js';
import { through32 } from '../elementwise/cast.js';
import {
  ELEMENTWISE_SIZE,
  elementwiseGrid,
  elementwiseMain,
  map,
} from '../elementwise/elementwise.js';
import { hasWholeRows, laneReductions } from './rows.js';

/** The kind of a reduction. `count` counts the elements that are equal to y. */
type ReduceKind = 'sum' | 'max' | 'min' | 'count';

export interface Reduction {
  readonly kind: ReduceKind;
  readonly x: View;
  /** What `count` compares with: [outer, inner]. */
  readonly y?: View;
  readonly out: View;
  readonly outer: number;
  readonly dim: number;
  readonly inner: number;
  /** The number that the result is divided by. The default is 1. */
  readonly divisor?: number;
}

/**
 * The number of results at once that keeps a device busy. A thread has few loads under way, so by
 * estimate 16,384 threads reach only a thirtieth of a large chip's memory rate.
 */
const BUSY = 65536;
/**
 * The shortest part of an axis that is worth a partial result. A long axis beside 768 columns gets
 * 86 parts, which one more pass sums.
 */
const MIN_PART = 96;
/** The lanes that share a row where `inner` is 1, and the elements each should have. */
const GROUP_LANES = 256;
const ENTRIES_PER_LANE = 16;

export function reduce(ctx: KernelContext, call: KernelCalls['reduce']): void {
  const { kind, ...rest } = call;
  if (kind === 'mean') {
    reduceInto(ctx, { ...rest, kind: 'sum', divisor: call.dim });
  } else {
    reduceInto(ctx, { ...rest, kind });
  }
}

export function extremumBackward(ctx: KernelContext, call: KernelCalls['extremumBackward']): void {
  const { x, y, dy, out, outer, dim, inner } = call;
  if (!ctx.fits([x, out]) && !hasWholeRows(out, dim * inner)) {
    through32(ctx, out, (wide) => extremumBackward(ctx, { ...call, out: wide }));
    return;
  }
  ctx.withScratch('f32', outer * inner, (count) => {
    reduceInto(ctx, { kind: 'count', x, y, out: count, outer, dim, inner });
    const slopes = (parts: readonly View[], numLines: number) => {
      const [xPart, yPart, dyPart, countPart, outPart] = parts as [View, View, View, View, View];
      map(ctx, {
        name: 'extremumBackward',
        inputs: { x: xPart, y: yPart, dy: dyPart, count: countPart },
        out: outPart,
        integers: { dim: numLines, inner },
        isWhole: true,
        helpers: INTEGER_DIVIDE,
        value: `let line = divide(i, P.inner);
  let at = divide(line, P.dim) * P.inner + (i - line * P.inner);
  let elsewhere = select(0.0, nan(), is_nan(load_y(at)));
  return select(elsewhere, load_dy(at) / load_count(at), load_x(i) == load_y(at));`,
      });
    };
    const op = 'extremumBackward';
    const strides = [dim * inner, inner, inner, inner, dim * inner];
    const cutRow = (line: readonly View[]) => {
      const lines = { strides: [inner, 0, 0, 0, inner], rows: dim, op };
      eachRowBlock(ctx, line, lines, (parts, _, numLines) => slopes(parts, numLines));
    };
    const views = [x, y, dy, count, out];
    eachRowBlock(ctx, views, { strides, rows: outer, op, cutRow }, (parts) => slopes(parts, dim));
  });
}

/** Reduces into any float dtype. */
export function reduceInto(ctx: KernelContext, reduction: Reduction): void {
  through32(ctx, reduction.out, (out) => reduceWide(ctx, { ...reduction, out }));
}

function reduceWide(ctx: KernelContext, reduction: Reduction): void {
  const { kind, outer, dim, inner, out } = reduction;
  const usesGroups = inner === 1 && dim >= 64;
  const numResults = outer * inner;
  const minPart = usesGroups ? GROUP_LANES * ENTRIES_PER_LANE : MIN_PART;
  const busy = BUSY / (usesGroups ? 64 : 1);
  const wanted = Math.min(Math.ceil(dim / minPart), Math.ceil(busy / numResults));
  const perPart = Math.min(Math.ceil(dim / wanted), mostPerPart(ctx, reduction));
  const parts = Math.ceil(dim / perPart);
  if (parts === 1) {
    pass(ctx, reduction, { perPart, parts, usesGroups });
    return;
  }
  ctx.withScratch('f32', outer * parts * inner, (partial) => {
    const first = { ...reduction, out: partial, divisor: 1 };
    pass(ctx, first, { perPart, parts, usesGroups });
    const { y: _unused, ...rest } = reduction;
    const next = kind === 'max' || kind === 'min' ? kind : 'sum';
    reduceWide(ctx, { ...rest, kind: next, x: partial, dim: parts, out });
  });
}

function pass(
  ctx: KernelContext,
  { kind, x, y, out, outer, dim, inner, divisor = 1 }: Reduction,
  { perPart, parts, usesGroups }: { perPart: number; parts: number; usesGroups: boolean },
): void {
  const key = `reduce ${kind} ${x.dtype} ${y?.dtype} ${usesGroups ? 'groups' : 'lanes'}`;
  const compiled = ctx.kernel(key, () => reduceKernel(key, { kind, x, y, usesGroups }));
  const dispatch = (
    views: readonly View[],
    extent: { outer: number; dim: number; parts: number },
  ) => {
    const words = extent.outer * extent.parts * inner;
    const { grid, perLane } = usesGroups
      ? { grid: linearGrid(words), perLane: 1 }
      : elementwiseGrid(ctx, words);
    const { dim: rows, parts: numParts } = extent;
    ctx.dispatch(compiled, {
      params: {
        dim: rows,
        inner,
        per_part: perPart,
        parts: numParts,
        divisor,
        words,
        per_lane: perLane,
      },
      views,
      grid,
      laneNs: perLane * Math.ceil(perPart / (usesGroups ? GROUP_LANES : 1)) * LOAD_NS,
    });
  };
  const views = y === undefined ? [x, out] : [x, y, out];
  const strides =
    y === undefined ? [dim * inner, parts * inner] : [dim * inner, inner, parts * inner];
  const steps = y === undefined ? [perPart * inner, inner] : [perPart * inner, 0, inner];
  const cutRow = (line: readonly View[]) =>
    eachRowBlock(ctx, line, { strides: steps, rows: parts, op: kind }, (blocks, first, numParts) =>
      dispatch(blocks, {
        outer: 1,
        dim: Math.min(numParts * perPart, dim - first * perPart),
        parts: numParts,
      }),
    );
  eachRowBlock(ctx, views, { strides, rows: outer, op: kind, cutRow }, (blocks, _, numOuter) =>
    dispatch(blocks, { outer: numOuter, dim, parts }),
  );
}

/**
 * Returns the most elements of an axis in a part, which must bind at once. It is two at least,
 * since a pass with one element in each part would reduce nothing.
 */
function mostPerPart(ctx: KernelContext, { kind, x, dim, inner }: Reduction): number {
  return dim * inner <= ctx.windowElements(x.dtype)
    ? dim
    : ctx.windowUnits([x.dtype], inner, { multiple: 2, op: kind });
}

function reduceKernel(
  label: string,
  {
    kind,
    x,
    y,
    usesGroups,
  }: { kind: ReduceKind; x: View; y: View | undefined; usesGroups: boolean },
): Kernel {
  const steps = {
    sum: 'r += v;',
    count: 'r += select(0.0, 1.0, v == load_y(o * P.inner + i));',
    max: 'r = larger(r, v);',
    min: 'r = smaller(r, v);',
  };
  const step = ofKind('reduce', steps, kind);
  const isExtremum = kind === 'max' || kind === 'min';
  const lanes = usesGroups ? GROUP_LANES : 1;
  const finish = usesGroups
    ? `
  let result = reduce_${isExtremum ? kind : 'add'}(r, me) / P.divisor;
  if (me == 0u) { store_out(u, result); }`
    : 'store_out(u, r / P.divisor);';
  return defineKernel({
    label,
    bindings: [
      { name: 'x', type: x.dtype, access: 'read' },
      ...(y === undefined ? [] : [{ name: 'y', type: y.dtype, access: 'read' as const }]),
      { name: 'out', type: 'f32', access: 'read_write' },
    ],
    params: {
      dim: 'u32',
      inner: 'u32',
      per_part: 'u32',
      parts: 'u32',
      divisor: 'f32',
      words: 'u32',
      per_lane: 'u32',
    },
    workgroupSize: usesGroups ? [GROUP_LANES, 1, 1] : ELEMENTWISE_SIZE,
    body: `${INTEGER_DIVIDE}
${usesGroups ? laneReductions(GROUP_LANES) : ''}
// u runs over [outer, parts, inner].
fn reduce_part(u: u32, me: u32) {
  let line = divide(u, P.inner);
  let i = u - line * P.inner;
  let o = divide(line, P.parts);
  let part = line - o * P.parts;
  let begin = part * P.per_part;
  let end = min(begin + P.per_part, P.dim);
  var r = ${isExtremum ? 'load_x((o * P.dim + begin) * P.inner + i)' : '0.0'};
  for (var d = begin + me; d < end; d += ${lanes}u) {
    let v = load_x((o * P.dim + d) * P.inner + i);
    ${step}
  }
  ${finish}
}
${
  usesGroups
    ? `${mainHead([GROUP_LANES, 1, 1])}
  if (group >= P.words) { return; }
  reduce_part(group, lane);
}`
    : elementwiseMain('reduce_part(u, 0u);')
}`,
  });
}
