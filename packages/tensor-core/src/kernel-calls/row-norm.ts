// Layer norm and RMS norm over whole rows. A row must bind.

import type { View } from '../view.js';

/** Rows that a norm divides by a number of each, and multiplies by a weight of each column. */
export interface NormedRows {
  x: View; // [rows, cols]
  weight: View | undefined; // [cols]
  rstd: View; // f32 [rows]
  rows: number;
  cols: number;
}

/** Rows from which their means are subtracted. */
interface Centered {
  isCentered: true;
  mean: View; // f32 [rows]
  weightOffset?: never;
}

/** Rows whose means stay in them, with a number that is added to the weight. */
interface Uncentered {
  isCentered: false;
  mean?: never;
  weightOffset: number;
}

/** The calls of the kernels of this file; the comments state what each computes. */
export interface RowNormCalls {
  /**
   * out = (x - mean) * rstd * weight + bias for each row of [rows, cols] if isCentered, which is
   * layer norm, and else out = x * rstd * (weight + weightOffset), which is RMS norm. rstd is
   * 1 / sqrt(variance + eps), with the biased variance, or 1 / sqrt(mean(x^2) + eps). With a
   * residual, sum = x + residual is stored, and what was stored is normalized.
   */
  rowNorm: NormedRows & {
    residual?: View | undefined;
    sum?: View | undefined;
    out: View;
    eps: number;
    isCentered: boolean;
    mean?: View | undefined; // f32 [rows], only where centered
    bias?: View | undefined; // [cols], only where centered
    weightOffset?: number; // only where not
  };
  /**
   * The gradients of rowNorm, where x is what was normalized. dSum is added to dx at the end, where
   * it is given. dWeight = the sum over rows of dy * (x - mean) * rstd, or of dy * x * rstd, and
   * dBias = the sum over rows of dy. Any of dx, dWeight and dBias may be absent.
   */
  rowNormBackward: NormedRows & {
    dy: View;
    dSum?: View | undefined;
    dx?: View | undefined;
    dWeight?: View | undefined;
  } & ((Centered & { dBias?: View | undefined }) | (Uncentered & { dBias?: never }));
}
