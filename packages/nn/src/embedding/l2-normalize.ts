// Rows of length 1, as embeddings are compared.

import { maximum, mul, rsqrt, square, sum, type Tensor } from '@shardweave/tensor-core';

/** The smallest norm that a row is divided by, which is that of PyTorch's normalize. */
const EPSILON = 1e-12;

/** The rows of x [rows, width] divided by their norms. A row of zeros stays zeros. */
export function l2Normalize(x: Tensor): Tensor {
  return mul(x, rsqrt(squaredNorms(x)));
}

/**
 * The squared norm of each row, [rows, 1], and at least EPSILON squared. The bound stands on the
 * square, since the slope of a root at 0 is infinite: a row of zeros has a finite gradient.
 */
export function squaredNorms(x: Tensor): Tensor {
  const least = x.device.full([], EPSILON * EPSILON);
  return maximum(sum(square(x), { axis: 1, keepDims: true }), least);
}
