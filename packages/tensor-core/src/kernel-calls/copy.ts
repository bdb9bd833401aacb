// The kernel that moves elements from strides to other strides.

import type { View } from '../view.js';

/** The call of the kernel of this file; the comment states what it computes. */
export interface CopyCalls {
  /**
   * out[outOffset + sum(i * outStrides)] = x[xOffset + sum(i * xStrides)] for all i in `shape`
   * (rank 1 to 6), of any dtype that x and out share: it makes transposes, slices, concatenations
   * and expansions. Strides of x may be 0, but not negative. A 16-bit out is either dense as a
   * whole with outOffset 0, or its last stride is 1, and outOffset, the last extent and the other
   * strides are even.
   */
  copyStrided: {
    x: View;
    out: View;
    shape: readonly number[];
    xOffset: number;
    xStrides: readonly number[];
    outOffset: number;
    outStrides: readonly number[];
  };
}
