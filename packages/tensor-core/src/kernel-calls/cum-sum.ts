// The kernel of running sums. It is enough that some elements of a line bind.

import type { View } from '../view.js';

/** The call of the kernel of this file; the comment states what it computes. */
export interface CumSumCalls {
  /**
   * Running sums along dim, from its end if isReverse. Each includes its element; integers wrap.
   */
  cumSum: {
    x: View;
    out: View; // [outer, dim, inner], an integer where x is
    outer: number;
    dim: number;
    inner: number;
    isReverse: boolean;
  };
}
