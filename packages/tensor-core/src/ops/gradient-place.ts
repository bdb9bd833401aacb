// The tensor into which the rule of an op writes the gradient of a parameter.

import type { Tensor } from '../tensor.js';

/**
 * A tensor of the leaf's shape and dtype for one complete contribution to its gradient. Where the
 * leaf's sink (a bucket or a flat gradient) offers a place, this is that place, which saves a copy;
 * else it is a new tensor. Its contents are undefined, so the rule has to write every element.
 */
export function gradientPlace(leaf: Tensor): Tensor {
  const place = leaf.origin === undefined ? leaf.gradSink?.target?.(leaf) : undefined;
  return place ?? leaf.device.empty(leaf.shape, { dtype: leaf.dtype });
}
