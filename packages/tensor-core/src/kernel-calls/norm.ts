// The calls of norms of gradients.

import type { View } from '../view.js';

/** The elements [start, start + length) of a view. */
export interface Span {
  readonly start: number;
  readonly length: number;
}

/** The elements of a block, which a norm adds up by themselves before anything else. */
export const NORM_BLOCK_ELEMENTS = 128;

/** The elements of a node, which is 256 blocks and gives one result of normNodes. */
export const NORM_NODE_ELEMENTS = 256 * NORM_BLOCK_ELEMENTS;

/** The calls of the kernels of this file; the comments state what each computes. */
export interface NormCalls {
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
}
