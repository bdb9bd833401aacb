// The calls of the steps of optimizers.

import type { View } from '../view.js';

/** The hyperparameters of one group of the kernel `adam`. Bias corrections are 1 - beta^t. */
export interface AdamGroup {
  readonly lr: number;
  readonly beta1: number;
  readonly beta2: number;
  readonly eps: number;
  readonly weightDecay: number;
  readonly biasCorrection1: number;
  readonly biasCorrection2: number;
  /**
   * Whether the group steps by AdamW, which multiplies param by 1 - lr * weightDecay before the
   * step. Adam adds weightDecay * param to the gradient.
   */
  readonly decoupled: boolean;
}

/** The hyperparameters of one group of the kernel `sgd`, each with PyTorch's meaning. */
export interface SgdGroup {
  readonly lr: number;
  readonly momentum: number;
  readonly dampening: number;
  readonly weightDecay: number;
  readonly nesterov: boolean;
  /** Whether this is the first step, which sets the momentum buffer to the gradient. */
  readonly isFirstStep: boolean;
}

/** The elements [start, start + length) of a flat view, which belong to optimizer group `group`. */
export interface Segment {
  readonly start: number;
  readonly length: number;
  readonly group: number;
}

/** The calls of the kernels of this file; the comments state what each computes. */
export interface OptimizerCalls {
  /**
   * One step of Adam or AdamW as in PyTorch, in place on param, expAvg and expAvgSq (f32, of equal
   * sizes). grad is float, and is multiplied by gradScale[0] (f32 [1]) where that is given.
   * Elements of no segment stay as they are. Segments ascend and do not overlap. Their array must
   * be the same object in each step and must not change, because it keys a cache.
   */
  adam: {
    param: View;
    grad: View;
    expAvg: View;
    expAvgSq: View;
    gradScale: View | undefined;
    groups: readonly AdamGroup[];
    segments: readonly Segment[];
  };
  /**
   * One step of SGD as in PyTorch. momentumBuffer is absent where all momentums are 0. The rest is
   * as in adam.
   */
  sgd: {
    param: View;
    grad: View;
    momentumBuffer: View | undefined;
    gradScale: View | undefined;
    groups: readonly SgdGroup[];
    segments: readonly Segment[];
  };
}
