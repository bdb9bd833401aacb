// The largest elements along an axis, with their indices.

import { checkNames } from '../check-options.js';
import { ShapeError } from '../errors.js';
import type { Tensor } from '../tensor.js';
import { requireFloat, resolveAxis, shapeText } from './checks.js';
import { type AxisOptions, gather, linesOf } from './gather.js';

/** What topK returns: values in descending order, and their indices along the axis. */
export interface TopK {
  readonly values: Tensor;
  /** The position of each value along the axis, i32. */
  readonly indices: Tensor;
}

/**
 * The index (i32) of the largest element along an axis, and of the first one where several are
 * equal. NaN counts as larger than every number.
 */
export function argMax(
  x: Tensor,
  options: AxisOptions & { readonly keepDims?: boolean } = {},
): Tensor {
  checkNames('argMax', options, ['axis', 'keepDims']);
  const axis = resolveAxis('argMax', options.axis ?? -1, x.rank);
  const shape = x.shape.map((size, i) => (i === axis ? 1 : size));
  return largest('argMax', x, {
    axis,
    count: 1,
    shape: options.keepDims === true ? shape : shape.filter((_, i) => i !== axis),
  });
}

/**
 * The k largest elements along an axis, in descending order. Equal elements keep their order, and
 * NaN counts as larger than every number. Gradients flow through the values.
 * @throws {ShapeError} unless k is a whole number from 0 to the axis's length
 */
export function topK(x: Tensor, k: number, options: AxisOptions = {}): TopK {
  checkNames('topK', options, ['axis']);
  const axis = resolveAxis('topK', options.axis ?? -1, x.rank);
  const size = x.shape[axis]!;
  if (!Number.isInteger(k) || k < 0 || k > size) {
    throw new ShapeError(
      `topK: expected k within the ${size} elements of axis ${axis} of ${shapeText(x.shape)}, got ${k}.`,
    );
  }
  const shape = x.shape.map((dim, i) => (i === axis ? k : dim));
  const indices = largest('topK', x, { axis, count: k, shape });
  return { values: gather(x, indices, { axis }), indices };
}

function largest(
  op: string,
  x: Tensor,
  to: { readonly axis: number; readonly count: number; readonly shape: readonly number[] },
): Tensor {
  requireFloat(op, x);
  const { outer, dim, inner } = linesOf(x, to.axis);
  const out = x.device.empty(to.shape, { dtype: 'i32' });
  if (out.size > 0) {
    if (dim === 0) {
      throw new ShapeError(
        `${op}: expected elements along axis ${to.axis}, got ${shapeText(x.shape)}. Nothing has no largest.`,
      );
    }
    const views = { x: x.view(), out: out.view() };
    x.device.run('topK', { ...views, outer, dim, inner, count: to.count });
  }
  return out;
}
