// Reduction over axes without a recorded gradient, and sumTo, the gradient of broadcasting. They
// have a file of their own because broadcasting and reducing are each other's gradients: shape.ts
// and reduce.ts both import this file, and neither needs the other for it.

import type { DType } from '@shardweave/dtypes';
import type { KernelCalls } from '../kernel-calls/kernel-calls.js';
import { elementCountOf, type Shape, type Tensor } from '../tensor.js';
import { isSameShape } from './checks.js';

/** A run of neighboring axes, both ends inclusive: [1, 2] is the second and the third axis. */
export type AxisRun = readonly [first: number, last: number];

/**
 * Sums x over the axes along which `shape` was broadcast, so that the result has that shape.
 * Records nothing.
 */
export function sumTo(x: Tensor, shape: Shape): Tensor {
  if (isSameShape(x.shape, shape)) {
    return x;
  }
  const lead = x.rank - shape.length;
  const axes = x.shape.flatMap((dim, i) =>
    i < lead || (shape[i - lead] === 1 && dim !== 1) ? [i] : [],
  );
  return x.device.scope(() =>
    runsOf(axes).reduceRight((input, run, i) => {
      const out = i === 0 ? x.device.empty(shape, { dtype: x.dtype }) : emptyFor(input, run, 'f32');
      runReduce('sum', input, { run, out });
      return out;
    }, x),
  );
}

/** An empty tensor for `x` reduced over `run`: x's shape, with those axes of length 1. */
export function emptyFor(x: Tensor, [first, last]: AxisRun, dtype: DType): Tensor {
  const shape = x.shape.map((size, i) => (i >= first && i <= last ? 1 : size));
  return x.device.empty(shape, { dtype });
}

/**
 * The element counts of the axes before a run, within it, and after it: for x of shape [2, 3, 4, 5]
 * and the run [1, 2] they are 2, 12 and 5.
 */
export function extentsOf(x: Tensor, [first, last]: AxisRun) {
  return {
    outer: elementCountOf(x.shape.slice(0, first)),
    dim: elementCountOf(x.shape.slice(first, last + 1)),
    inner: elementCountOf(x.shape.slice(last + 1)),
  };
}

/** Reduces x over a run of axes into `out`, in one kernel. */
export function runReduce(
  kind: KernelCalls['reduce']['kind'],
  x: Tensor,
  { run, out }: { readonly run: AxisRun; readonly out: Tensor },
): void {
  const extents = extentsOf(x, run);
  if (out.size === 0) {
    return;
  }
  if (extents.dim === 0) {
    x.device.run('fill', { out: out.view(), value: kind === 'mean' ? NaN : 0 });
  } else {
    x.device.run('reduce', { kind, x: x.view(), out: out.view(), ...extents });
  }
}

/** Groups ascending axes into runs of neighbors: `[0, 1, 3]` gives `[0, 1]` and `[3, 3]`. */
export function runsOf(axes: readonly number[]): AxisRun[] {
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
