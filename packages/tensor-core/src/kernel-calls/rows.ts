// The calls of kernels over whole rows: sums, softmax, norms and the loss. A row must bind. For
// reduce, extremumBackward and cumSum it is enough that some elements of a line do.

import type { View } from '../view.js';

/**
 * What each kernel over whole rows is called with, by its name; the comments state what it
 * computes.
 */
export interface RowCalls {
  /**
   * out [outer, inner] = the sum, mean or extremum of x [outer, dim, inner] along dim, of floats.
   */
  reduce: {
    kind: 'sum' | 'mean' | 'max' | 'min';
    x: View;
    out: View;
    outer: number;
    dim: number;
    inner: number;
  };
  /**
   * The gradient of max or min, which splits dy evenly among the elements of x that equal y. A line
   * whose y is NaN has no such element, and its gradient is NaN.
   */
  extremumBackward: {
    x: View; // [outer, dim, inner]
    y: View; // [outer, inner]
    dy: View; // [outer, inner]
    out: View; // [outer, dim, inner]
    outer: number;
    dim: number;
    inner: number;
  };
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
  /**
   * out = (x - mean) * rstd * weight + bias for each row of [rows, cols], where mean and rstd are
   * f32 [rows] and the variance is the biased one. With a residual, sum = x + residual is stored,
   * and what was stored is normalized.
   */
  layerNorm: {
    x: View;
    residual?: View | undefined;
    sum?: View | undefined;
    weight: View | undefined; // [cols]
    bias: View | undefined; // [cols]
    out: View;
    mean: View;
    rstd: View;
    rows: number;
    cols: number;
    eps: number;
  };
  /**
   * The gradients of layerNorm, where x is what was normalized. dSum is added to dx at the end,
   * where it is given. dWeight = the sum over rows of dy * (x - mean) * rstd, and dBias = the sum
   * over rows of dy. Any of dx, dWeight and dBias may be absent.
   */
  layerNormBackward: {
    x: View;
    weight: View | undefined;
    mean: View;
    rstd: View;
    dy: View;
    dSum?: View | undefined;
    dx?: View | undefined;
    dWeight?: View | undefined;
    dBias?: View | undefined;
    rows: number;
    cols: number;
  };
  /**
   * out = x * rstd * (weight + weightOffset) for each row of [rows, cols], where rstd = 1 /
   * sqrt(mean(x^2) + eps) is f32 [rows]. With a residual, sum = x + residual is stored, and what
   * was stored is normalized.
   */
  rmsNorm: {
    x: View;
    residual: View | undefined;
    sum: View | undefined;
    weight: View | undefined; // [cols]
    weightOffset: number;
    out: View;
    rstd: View;
    rows: number;
    cols: number;
    eps: number;
  };
  /**
   * The gradients of rmsNorm, where x is what was normalized. dSum is added to dx at the end, where
   * it is given. Either of dx and dWeight may be absent.
   */
  rmsNormBackward: {
    x: View;
    weight: View | undefined;
    weightOffset: number;
    rstd: View;
    dy: View;
    dSum: View | undefined;
    dx: View | undefined;
    dWeight: View | undefined;
    rows: number;
    cols: number;
  };
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
