// The loss over rows of logits. A row must bind.

import type { View } from '../view.js';

/** The calls of the kernels of this file; the comments state what each computes. */
export interface CrossEntropyCalls {
  /**
   * lse[i] = logSumExp(logits[i, :]) and loss[i] = lse[i] - logits[i, targets[i]], both f32 [rows].
   * targets is u32 or i32; one outside [0, cols) gives the loss 0.
   */
  crossEntropy: { logits: View; targets: View; loss: View; lse: View; rows: number; cols: number };
  /**
   * out[i, j] = dLoss[i] * (exp(logits[i, j] - lse[i]) - (first + j == targets[i])), and 0 in rows
   * whose target is not in [0, classes). It may run in place over logits.
   */
  crossEntropyBackward: {
    logits: View;
    targets: View;
    lse: View; // f32 [rows]
    dLoss: View; // f32 [rows]
    out: View;
    rows: number;
    cols: number;
    /** The class of the first column. The default is 0. */
    first?: number;
    /** The number of classes. The default is cols. */
    classes?: number;
  };
}
