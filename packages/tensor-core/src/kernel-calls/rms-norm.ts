// RMS norm over whole rows. A row must bind.

import type { View } from '../view.js';

/** The calls of the kernels of this file; the comments state what each computes. */
export interface RmsNormCalls {
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
}
