// What follows a backward: norms of gradients, and the steps of optimizers.

import type { View } from '../view.js';

/** Hyperparameters of one optimizer group. Bias corrections are 1 - beta^t, made on the host. */
export interface AdamGroup {
  readonly lr: number;
  readonly beta1: number;
  readonly beta2: number;
  readonly eps: number;
  readonly weightDecay: number;
  readonly biasCorrection1: number;
  readonly biasCorrection2: number;
  /** true: AdamW (param *= 1 - lr*wd before the step); false: Adam (grad += wd*param). */
  readonly decoupled: boolean;
}

/** Hyperparameters of one group of the kernel `sgd`, with PyTorch's meaning of each. */
export interface SgdGroup {
  readonly lr: number;
  readonly momentum: number;
  readonly dampening: number;
  readonly weightDecay: number;
  readonly nesterov: boolean;
  /** On the first step the momentum buffer is set to the gradient, as PyTorch does. */
  readonly isFirstStep: boolean;
}

/** Elements [start, start + length) of a flat view belong to optimizer group `group`. */
export interface Segment {
  readonly start: number;
  readonly length: number;
  readonly group: number;
}

/** Elements [start, start + length) of a view. */
export interface Span {
  readonly start: number;
  readonly length: number;
}

/** Elements whose magnitudes a norm adds up by themselves, before anything else; see normNodes. */
export const NORM_BLOCK_ELEMENTS = 128;

/** Most elements behind one result of normNodes: 256 blocks. */
export const NORM_NODE_ELEMENTS = 256 * NORM_BLOCK_ELEMENTS;

/**
 * What the kernels of gradient norms and optimizer steps are called with, by their names; the
 * comments state what each computes.
 */
export interface UpdateCalls {
  /**
   * Norms, first part. Each span is cut into nodes of NORM_NODE_ELEMENTS, the last one shorter, and
   * nodes into blocks of NORM_BLOCK_ELEMENTS. A block is the sum of |x[i]|^power, or the largest
   * |x[i]| where power is Infinity, in an order that depends on its length alone; below the
   * smallest normal number it counts as 0. Neighboring blocks are added, then neighbors of those,
   * and so on; one without a neighbor stays. out f32: the nodes of the first span, then those of
   * the next. Spans ascend and don't overlap. x float; a node must bind.
   */
  normNodes: { x: View; out: View; spans: readonly Span[]; power: number };
  /**
   * Norms, second part: out[i] is span i of x, f32, added up as blocks are in normNodes, or its
   * largest element where isMax.
   */
  normTree: { x: View; out: View; spans: readonly Span[]; isMax: boolean };
  /**
   * norm[0] = unscale * sqrt(squares[0]) and scale[0] = unscale * min(1, maxNorm / (norm[0] +
   * 1e-6)), where maxNorm is Infinity unscale itself; all f32 [1]. Each operation is rounded to f32
   * correctly on every device, division and root too; a bound or a quotient below the normal
   * numbers counts as 0.
   */
  clipFactor: { squares: View; norm: View; scale: View; maxNorm: number; unscale: number };
  /**
   * One Adam or AdamW step as PyTorch's, in place on param, expAvg, expAvgSq (f32, equal sizes);
   * grad float, multiplied by gradScale[0] (f32 [1]) where given. Elements of no segment are left
   * alone. Segments ascend and don't overlap; keep the array's identity, so it can key a cache.
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
   * One SGD step as PyTorch's; momentumBuffer absent where all momentums are 0. As adam otherwise.
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
