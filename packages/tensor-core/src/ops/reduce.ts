// Sums, means, maxima and minima over axes. Each run of neighboring axes is one kernel.

import type { DType } from '@shardweave/dtypes';
import { checkNames } from '../check-options.js';
import { ShapeError } from '../errors.js';
import type { Tensor } from '../tensor.js';
import { cast } from './cast.js';
import { requireFloat, resolveAxis, shapeText } from './checks.js';
import { affine } from './elementwise.js';
import { broadcastTo, reshape } from './shape.js';
import { type AxisRun, emptyFor, extentsOf, runReduce, runsOf } from './sum-to.js';

type ReduceKind = 'sum' | 'mean' | 'max' | 'min';

/** Options of sum, mean, max and min: which axes are reduced, and whether they stay. */
export interface ReduceOptions {
  /** The axis or axes to reduce; negative ones count from the end. The default is all axes. */
  readonly axis?: number | readonly number[];
  /** Whether reduced axes stay, with length 1, instead of being dropped. The default is false. */
  readonly keepDims?: boolean;
}

/**
 * The sum over axes, of x's dtype. Floats are added in f32 and in a fixed order, so the same input
 * gives the same bits; the result is rounded once. An empty sum is 0.
 * @throws {DTypeError} when x is no float tensor
 */
export const sum = (x: Tensor, options?: ReduceOptions): Tensor => reduce('sum', x, options);
/**
 * The mean over axes, of x's dtype, computed in f32. An empty mean is NaN.
 * @throws {DTypeError} when x is no float tensor
 */
export const mean = (x: Tensor, options?: ReduceOptions): Tensor => reduce('mean', x, options);
/**
 * The largest element over axes. Where several elements are equally large, each gets an equal part
 * of the gradient.
 * @throws {ShapeError} when a reduced axis is empty
 * @throws {DTypeError} when x is no float tensor
 */
export const max = (x: Tensor, options?: ReduceOptions): Tensor => reduce('max', x, options);
/**
 * The smallest element over axes. Where several elements are equally small, each gets an equal part
 * of the gradient.
 * @throws {ShapeError} when a reduced axis is empty
 * @throws {DTypeError} when x is no float tensor
 */
export const min = (x: Tensor, options?: ReduceOptions): Tensor => reduce('min', x, options);

function reduce(kind: ReduceKind, x: Tensor, options: ReduceOptions = {}): Tensor {
  checkNames(kind, options, ['axis', 'keepDims']);
  requireFloat(kind, x);
  const axes = axesOf(kind, x, options.axis);
  const isExtremum = kind === 'max' || kind === 'min';
  if (isExtremum && axes.some((axis) => x.shape[axis] === 0)) {
    throw new ShapeError(
      `${kind}: expected no empty axis among those reduced, got shape ${shapeText(x.shape)} over axes ${shapeText(axes)}. Nothing has no extremum.`,
    );
  }
  const keptShape = x.shape.map((dim, i) => (axes.includes(i) ? 1 : dim));
  const outShape =
    options.keepDims === true ? keptShape : x.shape.filter((_, i) => !axes.includes(i));
  // Each run of neighboring axes takes one kernel, the last run first. Sums and means between the
  // kernels stay in f32, so that only the final result is rounded to the dtype of x.
  return x.device.scope(() => {
    const reduced = runsOf(axes).reduceRight((input, run, i) => {
      const dtype = i === 0 || isExtremum ? x.dtype : 'f32';
      return reduceRun(kind, input, { run, dtype });
    }, x);
    return reshape(reduced, outShape);
  });
}

/** Reduces a run of axes to length 1 by one kernel, and records its gradient. */
function reduceRun(
  kind: ReduceKind,
  x: Tensor,
  { run, dtype }: { readonly run: AxisRun; readonly dtype: DType },
): Tensor {
  const { device } = x;
  const out = emptyFor(x, run, dtype);
  runReduce(kind, x, { run, out });
  const isExtremum = kind === 'max' || kind === 'min';
  device.record({
    name: kind,
    inputs: [x],
    outputs: [out],
    saved: isExtremum ? [x, out] : [],
    backward: ([dy]) => {
      if (!isExtremum) {
        const share = kind === 'mean' ? affine(dy!, 1 / extentsOf(x, run).dim, 0) : dy!;
        const spread = broadcastTo(share, x.shape);
        return [cast(spread, x.dtype)];
      }
      const dx = device.empty(x.shape, { dtype: x.dtype });
      if (dx.size === 0) {
        return [dx];
      }
      device.run('extremumBackward', {
        x: x.view(),
        y: out.view(),
        dy: dy!.view(),
        out: dx.view(),
        ...extentsOf(x, run),
      });
      return [dx];
    },
  });
  return out;
}

/** Sums x [rows, cols] over its rows into `out` [cols], rounded once, outside any graph. */
export function sumRowsInto(x: Tensor, out: Tensor): void {
  runReduce('sum', x, { run: [0, 0], out });
}

function axesOf(op: string, x: Tensor, axis: number | readonly number[] | undefined): number[] {
  if (axis === undefined) {
    return x.shape.map((_, i) => i);
  }
  const axes = (typeof axis === 'number' ? [axis] : [...axis]).map((a) =>
    resolveAxis(op, a, x.rank),
  );
  return [...new Set(axes)].sort((a, b) => a - b);
}
