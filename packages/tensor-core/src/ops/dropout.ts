// Dropout by a counter-based random generator. The mask is a function of the device's random key
// and of the element's place in the global batch, so backward computes it again and saves nothing.

import { ShapeError } from '../errors.js';
import type { RandomKey } from '../random.js';
import type { Tensor } from '../tensor.js';
import { requireFloat, shapeText } from './checks.js';

/** What determines a dropout's mask: p, a key, and the counter of the tensor's first element. */
export interface DropoutMask {
  readonly p: number;
  readonly key: RandomKey;
  readonly counterOffset: number;
}

/**
 * Zeroes each element with probability p and scales the others by 1 / (1 - p). The first axis is
 * the batch's; device.random.begin sets the global number of its first row, so that ranks which
 * share a batch draw different parts of one mask. For p = 0 the result is x itself.
 * @throws {ShapeError} unless 0 <= p < 1
 */
export function dropout(x: Tensor, p: number): Tensor {
  requireFloat('dropout', x);
  const mask = nextMask('dropout', x, p);
  return mask === undefined ? x : applyMask(x, mask);
}

/** Draws the mask for elements whose first axis is the batch; undefined for p = 0. */
export function nextMask(
  op: string,
  x: Pick<Tensor, 'device' | 'shape' | 'size'>,
  p: number,
): DropoutMask | undefined {
  if (!(p >= 0 && p < 1)) {
    throw new ShapeError(
      `${op}: expected a dropout probability 0 <= p < 1, got ${p} for ${shapeText(x.shape)}. It is the part dropped, not the part kept.`,
    );
  }
  if (p === 0) {
    return undefined;
  }
  const { random } = x.device;
  const rowElements = x.size / Math.max(1, x.shape[0] ?? 1);
  return { p, key: random.nextMaskKey(), counterOffset: random.rowOffset * rowElements };
}

/** Applies the mask to x, and records the gradient, which is the same mask applied to dy. */
export function applyMask(x: Tensor, mask: DropoutMask): Tensor {
  const { device } = x;
  const out = device.empty(x.shape, { dtype: x.dtype });
  if (out.size > 0) {
    device.run('dropout', {
      x: x.view(),
      out: out.view(),
      p: mask.p,
      key0: mask.key.key0,
      key1: mask.key.key1,
      counterOffset: mask.counterOffset,
    });
  }
  device.record({
    name: 'dropout',
    inputs: [x],
    outputs: [out],
    saved: [],
    backward: ([dy]) => [applyMask(dy!, mask)],
  });
  return out;
}
