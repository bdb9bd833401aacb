// Layer norm over whole rows. A row must bind.

import type { View } from '../view.js';

/** The calls of the kernels of this file; the comments state what each computes. */
export interface LayerNormCalls {
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
}
