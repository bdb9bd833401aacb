// Where the rule of an op writes the gradient of a parameter.

import type { Tensor } from '../tensor.js';

/**
 * A tensor of the leaf's shape and dtype for the whole of one contribution: the place that the
 * leaf's sink has for it, so that it need not be copied there, or one of its own. What it holds is
 * undefined.
 */
export function gradientPlace(leaf: Tensor): Tensor {
  const place = leaf.node === undefined ? leaf.gradSink?.target?.(leaf) : undefined;
  return place ?? leaf.device.empty(leaf.shape, { dtype: leaf.dtype });
}
