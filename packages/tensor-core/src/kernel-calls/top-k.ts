// The kernel that finds the largest elements along an axis.

import type { View } from '../view.js';

/** The call of the kernel of this file; the comment states what it computes. */
export interface TopKCalls {
  /**
   * out (i32 or u32) [outer, count, inner] gets the indices of the largest elements along dim of x
   * (float), in descending order of the elements, with the lower index first among equal ones. NaN
   * is the largest, and zeros of both signs are equal.
   */
  topK: { x: View; out: View; outer: number; dim: number; inner: number; count: number };
}
