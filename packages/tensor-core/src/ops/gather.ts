// Elements chosen by index along an axis.

import { isFloat } from '@shardweave/dtypes';
import { checkNames } from '../check-options.js';
import { ShapeError } from '../errors.js';
import { elementCountOf, type Tensor } from '../tensor.js';
import {
  isSameShape,
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

/** The lines of x along an axis, as kernels over [outer, dim, inner] count them. */
export function linesOf(x: Tensor, axis: number) {
  return {
    outer: elementCountOf(x.shape.slice(0, axis)),
    dim: x.shape[axis]!,
    inner: elementCountOf(x.shape.slice(axis + 1)),
  };
}
