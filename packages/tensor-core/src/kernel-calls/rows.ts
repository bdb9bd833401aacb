// Kernels over whole rows: sums, softmax, norms and the loss. A row must bind; of reduce, some
// elements of each line.

import type { View } from '../view.js';

/**
 * What each kernel over whole rows is called with, by its name; the comments state what it
 * computes.
 */
export interface RowCalls {
  /** x [outer, dim, inner] -> out [outer, inner], float. */
  reduce: {
    kind: 'sum' | 'mean' | 'max' | 'min';
    x: View;
    out: View;
    outer: number;
    dim: number;
    inner: number;
  };
  /**
   * Gradient of max or min: dy split evenly among the entries of x equal to y. A line whose y is
   * NaN has none equal to it, and its gradient is NaN.
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
  /** Sums along dim up to and with each element, from its end where isReverse. Integers wrap. */
  cumSum: {
    x: View;
    out: View; // [outer, dim, inner], an integer where x is
    outer: number;
    dim: number;
    inner: number;
    isReverse: boolean;
  };
  /**
   * Row softmax (or log-softmax) of scale * x, [rows, cols], in place allowed. With causalRows =
   * P > 0, row r is query position t = r mod P and sees columns j <= t + cols - P; the others
   * become 0 (log: -inf).
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
   * From y = softmax(scale * x): out = scale * y * (dy - sum(dy * y)); isLog: scale * (dy - exp(y)
   * * sum(dy)). In place over dy allowed.
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
   * out = (x - mean) * rstd * weight + bias per row of [rows, cols]; mean, rstd f32 [rows]; biased
   * variance. With a residual, sum = x + residual is stored, and what was stored is normalized.
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
   * dx of the above, x being what was normalized, dSum added last where given; dWeight = sum over
   * rows of dy * xhat, dBias = sum over rows of dy. Any of the three may be absent.
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
   * out = x * rstd * (weight + weightOffset) per row of [rows, cols]; rstd = 1 / sqrt(mean(x^2) +
   * eps), f32 [rows]. With a residual, sum = x + residual is stored, and what was stored is
   * normalized.
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
  /** dx of the above, dSum added last where given, and dWeight; either of them may be absent. */
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
   * loss[i] = logSumExp(logits[i, :]) - logits[i, targets[i]]; lse[i] = logSumExp; both f32 [rows];
   * targets u32 or i32. A target outside [0, cols) gives loss 0.
   */
  crossEntropy: { logits: View; targets: View; loss: View; lse: View; rows: number; cols: number };
  /**
   * out[i, j] = dLoss[i] * (exp(logits[i, j] - lse[i]) - (first + j == targets[i])); rows whose
   * target is not in [0, classes) get 0. In place over logits allowed.
   */
  crossEntropyBackward: {
    logits: View;
    targets: View;
    lse: View; // f32 [rows]
    dLoss: View; // f32 [rows]
    out: View;
    rows: number;
    cols: number;
    /** The class of the first column. Default 0. */
    first?: number;
    /** Default cols. */
    classes?: number;
  };
}
