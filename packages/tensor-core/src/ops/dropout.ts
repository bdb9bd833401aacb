// Dropout by a counter-based generator: the mask is a function of the device's random key and the
// element's place in the global batch. Nothing is saved for backward; the mask is made again.

import { ShapeError } from '../errors.js';
import type { RandomKey } from '../random.js';
import type { Tensor } from '../tensor.js';
import { requireFloat, shapeText } from './checks.js';

/** Which elements a dropout keeps: a key, and the counter of the tensor's first element. */
export interface DropoutMask {
  readonly p: number;
  readonly key: RandomKey;
  readonly counterOffset: number;
}

/**
 * Zeroes elements with probability p and scales the others by 1 / (1 - p). The first axis counts
 * rows of the batch: device.random.begin says which global row the first one is.
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

/** x with the mask applied; differentiable. */
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
