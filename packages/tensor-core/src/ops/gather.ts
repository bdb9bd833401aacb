// Ops along one axis: elements chosen by index, the largest with their indices, and running sums.

import { isFloat } from '@shardweave/dtypes';
import { checkNames } from '../check-options.js';
import { ShapeError } from '../errors.js';
import { elementCountOf, type Tensor } from '../tensor.js';
import {
  isSameShape,
  requireFloat,
  requireInteger,
  requireSameDevice,
  resolveAxis,
  shapeText,
} from './checks.js';

/** The one axis along which gather, argMax, topK and cumSum work. */
export interface AxisOptions {
  /** The axis; a negative one counts from the end. The default is -1, the last. */
  readonly axis?: number;
}

/** What topK returns: values in descending order, and their indices along the axis. */
export interface TopK {
  readonly values: Tensor;
  /** The position of each value along the axis, i32. */
  readonly indices: Tensor;
}

/**
 * Elements chosen by index along an axis: out[.., n, ..] = x[.., indices[.., n, ..], ..]. The
 * indices (i32, u32) have the shape of x, except that the axis may have any length. An index
 * outside the axis gives 0 and no gradient. Where an element is chosen several times, its gradients
 * are added in the order of the indices.
 */
export function gather(x: Tensor, indices: Tensor, options: AxisOptions = {}): Tensor {
  checkNames('gather', options, ['axis']);
  requireInteger('gather', indices);
  requireSameDevice('gather', x, indices);
  const axis = resolveAxis('gather', options.axis ?? -1, x.rank);
  const count = indices.shape[axis] ?? 0;
  const expected = x.shape.map((size, i) => (i === axis ? count : size));
  if (!isSameShape(indices.shape, expected)) {
    throw new ShapeError(
      `gather: expected indices of x's shape but along axis ${axis}, got x ${shapeText(x.shape)} and indices ${shapeText(indices.shape)}.`,
    );
  }
  const { device } = x;
  const { outer, dim, inner } = linesOf(x, axis);
  const out = device.empty(indices.shape, { dtype: x.dtype });
  if (out.size > 0) {
    if (dim === 0) {
      device.run('fill', { out: out.view(), value: 0 });
    } else {
      const views = { x: x.view(), ids: indices.view(), out: out.view() };
      device.run('gather', { ...views, outer, dim, inner, count });
    }
  }
  if (isFloat(x.dtype)) {
    device.record({
      name: 'gather',
      inputs: [x],
      outputs: [out],
      saved: [indices],
      backward: ([dy]) => {
        if (out.size === 0 || dim === 0) {
          return [device.zeros(x.shape, { dtype: x.dtype })];
        }
        const dx = device.empty(x.shape, { dtype: x.dtype });
        const views = { ids: indices.view(), dy: dy!.view(), dx: dx.view() };
        device.run('gatherBackward', { ...views, outer, dim, inner, count });
        return [dx];
      },
    });
  }
  return out;
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

/**
 * The running sum along an axis, inclusive: [1, 2, 3] gives [1, 3, 6]. Floats are added in f32;
 * integers wrap around.
 */
export function cumSum(x: Tensor, options: AxisOptions = {}): Tensor {
  checkNames('cumSum', options, ['axis']);
  const axis = resolveAxis('cumSum', options.axis ?? -1, x.rank);
  const { device, dtype } = x;
  const lines = linesOf(x, axis);
  const summed = (from: Tensor, isReverse: boolean): Tensor => {
    const to = device.empty(x.shape, { dtype });
    if (to.size > 0) {
      device.run('cumSum', { x: from.view(), out: to.view(), ...lines, isReverse });
    }
    return to;
  };
  const out = summed(x, false);
  if (isFloat(dtype)) {
    device.record({
      name: 'cumSum',
      inputs: [x],
      outputs: [out],
      saved: [],
      backward: ([dy]) => [summed(dy!, true)],
    });
  }
  return out;
}

function linesOf(x: Tensor, axis: number) {
  return {
    outer: elementCountOf(x.shape.slice(0, axis)),
    dim: x.shape[axis]!,
    inner: elementCountOf(x.shape.slice(axis + 1)),
  };
}
