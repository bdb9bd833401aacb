// Softmax and log-softmax along the last axis.

import { ShapeError } from '../errors.js';
import type { Tensor } from '../tensor.js';
import { requireFloat } from './checks.js';

/**
 * exp(x) divided by its sum along the last axis, of x's shape and dtype. Any finite x is safe: the
 * exponentials do not overflow.
 * @throws {ShapeError} when x has no axis
 * @throws {DTypeError} when x is no float tensor
 */
export const softmax = (x: Tensor): Tensor => rowSoftmax(x, false);
/**
 * The logarithm of softmax along the last axis, of x's shape and dtype.
 * @throws {ShapeError} when x has no axis
 * @throws {DTypeError} when x is no float tensor
 */
export const logSoftmax = (x: Tensor): Tensor => rowSoftmax(x, true);

function rowSoftmax(x: Tensor, isLog: boolean): Tensor {
  const name = isLog ? 'logSoftmax' : 'softmax';
  requireFloat(name, x);
  const cols = x.shape.at(-1);
  if (cols === undefined) {
    throw new ShapeError(`${name}: expected at least one axis, got shape []. Reshape it to [1].`);
  }
  const rows = x.size / Math.max(1, cols);
  const { device } = x;
  const out = device.empty(x.shape, { dtype: x.dtype });
  if (out.size > 0) {
    device.run('softmax', {
      x: x.view(),
      out: out.view(),
      rows,
      cols,
      scale: 1,
      isLog,
      causalRows: 0,
    });
  }
  device.record({
    name,
    inputs: [x],
    outputs: [out],
    saved: [out],
    backward: ([dy]) => {
      const dx = device.empty(x.shape, { dtype: x.dtype });
      if (dx.size > 0) {
        device.run('softmaxBackward', {
          y: out.view(),
          dy: dy!.view(),
          out: dx.view(),
          rows,
          cols,
          scale: 1,
          isLog,
        });
      }
      return [dx];
    },
  });
  return out;
}
