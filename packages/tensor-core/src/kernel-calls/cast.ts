// Kernels that make elements of a number, or of those of another dtype.

import type { View } from '../view.js';

/** The calls of the kernels of this file; the comments state what each computes. */
export interface CastCalls {
  /** out[i] = value, converted to out's dtype. */
  fill: { out: View; value: number };
  /**
   * out[i] = x[i] in another dtype, for any pair of dtypes. Float to float rounds to nearest even
   * and keeps NaN, infinities and subnormals. Float to integer truncates toward zero and saturates,
   * and NaN gives 0. Integer to integer keeps the bits.
   */
  cast: { x: View; out: View };
}
