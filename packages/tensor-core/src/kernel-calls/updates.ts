// The calls that follow a backward pass: norms of gradients, and the steps of optimizers.

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

/** The elements [start, start + length) of a view. */
export interface Span {
  readonly start: number;
  readonly length: number;
}

/** The elements of a block, which a norm adds up by themselves before anything else. */
export const NORM_BLOCK_ELEMENTS = 128;

/** The elements of a node, which is 256 blocks and gives one result of normNodes. */
export const NORM_NODE_ELEMENTS = 256 * NORM_BLOCK_ELEMENTS;

/**
 * What the kernels of gradient norms and optimizer steps are called with, by their names; the
 * comments state what each computes.
 */
export interface UpdateCalls {
  /**
   * The first part of norms. Each span of x (float) is cut into nodes of NORM_NODE_ELEMENTS, of
   * which the last may be shorter, and nodes into blocks of NORM_BLOCK_ELEMENTS. A block's value is
   * the sum of |x[i]|^power, or the largest |x[i]| where power is Infinity, in an order that
   * depends only on its length; below the smallest normal number it counts as 0. Neighboring blocks
   * are added, then neighboring sums, and so on; a value without a neighbor goes up as it is. out
   * (f32) gets the nodes of the first span, then those of the next. Spans ascend and do not
   * overlap. A node must bind.
   */
  normNodes: { x: View; out: View; spans: readonly Span[]; power: number };
  /**
   * The second part of norms: out[i] is the sum of span i of x, f32, added up as normNodes adds
   * blocks, or its largest element if isMax.
   */
  normTree: { x: View; out: View; spans: readonly Span[]; isMax: boolean };
  /**
   * norm[0] = unscale * sqrt(squares[0]) and scale[0] = unscale * min(1, maxNorm / (norm[0] +
   * 1e-6)), or unscale itself where maxNorm is Infinity; all are f32 [1]. Every device rounds each
   * operation to f32 correctly, even division and root. A bound or a quotient below the normal
   * numbers counts as 0.
   */
  clipFactor: { squares: View; norm: View; scale: View; maxNorm: number; unscale: number };
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
