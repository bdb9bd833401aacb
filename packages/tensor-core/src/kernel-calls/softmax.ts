// Softmax over whole rows. A row must bind.

import type { View } from '../view.js';

/** The calls of the kernels of this file; the comments state what each computes. */
export interface SoftmaxCalls {
  /**
   * Softmax, or log-softmax if isLog, over rows of scale * x, [rows, cols]. It may run in place.
   * With causalRows = P > 0, row r is the query at position t = r mod P and sees the columns j <= t
   * + cols
   * - P; the others become 0, or -inf if isLog.
   */
  softmax: {
    x: View;
    out: View;
    rows: number;
    cols: number;
    scale: number;
    isLog: boolean;
    causalRows: number;
  };
  /**
   * The gradient of softmax from its result y: out = scale * y * (dy - sum(dy * y)), or if isLog
   * out = scale * (dy - exp(y) * sum(dy)). It may run in place over dy.
   */
  softmaxBackward: {
    y: View;
    dy: View;
    out: View;
    rows: number;
    cols: number;
    scale: number;
    isLog: boolean;
  };
}
