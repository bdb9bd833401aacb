// The kernel that drops elements at random.

import type { View } from '../view.js';

/** The call of the kernel of this file; the comment states what it computes. */
export interface DropoutCalls {
  /**
   * out[i] = keep(i) ? x[i] / (1 - p) : 0. It may run in place. With e = counterOffset + i, keep(i)
   * is whether word (e mod 4) of Philox4x32-10 with key (key0, key1) and counter (floor(e / 4) low
   * 32, high 32, 0, 0) is >= floor(p * 2^32). The gradient is the same kernel over dy.
   */
  dropout: { x: View; out: View; p: number; key0: number; key1: number; counterOffset: number };
}
