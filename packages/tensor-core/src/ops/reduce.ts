// Sums, means and extrema over axes.

import type { DType } from '@shardweave/dtypes';
import { checkNames } from '../check-options.js';
import { ShapeError } from '../errors.js';
import { elementCountOf, type Shape, type Tensor } from '../tensor.js';
import { cast } from './cast.js';
import { isSameShape, requireFloat, resolveAxis, shapeText } from './checks.js';
import { affine } from './elementwise.js';
import { broadcastTo, reshape } from './shape.js';

type ReduceKind = 'sum' | 'mean' | 'max' | 'min';

export interface ReduceOptions {
  /** One axis or several, negative from the end. Default all. */
  readonly axis?: number | readonly number[];
  /** Keeps reduced axes with length 1. Default false. */
  readonly keepDims?: boolean;
}

/** Sum over axes; f32 inside, in a fixed order. An empty sum is 0. */
export const sum = (x: Tensor, options?: ReduceOptions): Tensor => reduce('sum', x, options);
/** Mean over axes. */
export const mean = (x: Tensor, options?: ReduceOptions): Tensor => reduce('mean', x, options);
/** Largest over axes; equal entries share the gradient. */
export const max = (x: Tensor, options?: ReduceOptions): Tensor => reduce('max', x, options);
/** Smallest over axes; equal entries share the gradient. */
export const min = (x: Tensor, options?: ReduceOptions): Tensor => reduce('min', x, options);

/** Sums x over the axes along which `shape` was broadcast, so that the result has that shape. */
export function sumTo(x: Tensor, shape: Shape): Tensor {
  if (isSameShape(x.shape, shape)) {
    return x;
  }
  const lead = x.rank - shape.length;
  const axes = x.shape.flatMap((dim, i) =>
    i < lead || (shape[i - lead] === 1 && dim !== 1) ? [i] : [],
  );
  return reshape(axes.length > 0 ? reduce('sum', x, { axis: axes }) : x, shape);
}

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
  // Runs of neighboring axes reduce in one kernel, the last run first; rounded once, at the end.
  return x.device.scope(() => {
    let result = x;
    runsOf(axes)
      .reverse()
      .forEach(([first, last], i, { length }) => {
        const dtype = i === length - 1 || isExtremum ? x.dtype : 'f32';
        result = reduceRun(kind, result, { first, last, dtype });
      });
    return reshape(result, outShape);
  });
}

/** Reduces axes first..last (inclusive) to length 1 in one kernel. */
function reduceRun(
  kind: ReduceKind,
  x: Tensor,
  run: { readonly first: number; readonly last: number; readonly dtype: DType },
): Tensor {
  const { first, last, dtype } = run;
  const { device } = x;
  const outer = elementCountOf(x.shape.slice(0, first));
  const dim = elementCountOf(x.shape.slice(first, last + 1));
  const inner = elementCountOf(x.shape.slice(last + 1));
  const shape = x.shape.map((size, i) => (i >= first && i <= last ? 1 : size));
  const out = device.empty(shape, { dtype });
  if (out.size > 0) {
    if (dim === 0) {
      device.run('fill', { out: out.view(), value: kind === 'mean' ? NaN : 0 });
    } else {
      device.run('reduce', { kind, x: x.view(), out: out.view(), outer, dim, inner });
    }
  }
  const isExtremum = kind === 'max' || kind === 'min';
  device.record({
    name: kind,
    inputs: [x],
    outputs: [out],
    saved: isExtremum ? [x, out] : [],
    backward: ([dy]) => {
      if (!isExtremum) {
        const spread = broadcastTo(kind === 'mean' ? affine(dy!, 1 / dim, 0) : dy!, x.shape);
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
        outer,
        dim,
        inner,
      });
      return [dx];
    },
  });
  return out;
}

/** Sums x [rows, cols] over its rows into `out` [cols], outside any graph. */
export function sumRowsInto(x: Tensor, out: Tensor): Tensor {
  const [dim, inner] = x.shape as [number, number];
  if (inner === 0) {
    return out;
  }
  if (dim === 0) {
    x.device.run('fill', { out: out.view(), value: 0 });
  } else {
    const [from, to] = [x.view(), out.view()];
    x.device.run('reduce', { kind: 'sum', x: from, out: to, outer: 1, dim, inner });
  }
  return out;
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

function runsOf(axes: readonly number[]): [number, number][] {
  const runs: [number, number][] = [];
  for (const axis of axes) {
    const run = runs.at(-1);
    if (run !== undefined && run[1] === axis - 1) {
      run[1] = axis;
    } else {
      runs.push([axis, axis]);
    }
  }
  return runs;
}
