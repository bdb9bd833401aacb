// The calls of attention.

import type { View } from '../view.js';

/** How far apart the parts of an operand of attention lie, in elements. Columns have stride 1. */
export interface HeadStrides {
  readonly batch: number;
  readonly head: number;
  readonly row: number;
}

/** The largest head size of attention. */
export const MAX_HEAD_DIM = 256;

/** The operands that both passes of attention take. */
export interface AttentionOperands {
  /** The queries: rows [batch, numHeads, numQueries, dim] through qStrides. */
  q: View;
  /** The keys: rows [batch, numKvHeads, numKeys, dim] through kStrides. */
  k: View;
  /** The values, in rows like those of the keys, through vStrides. */
  v: View;
  /** The result, dense [batch, numQueries, numHeads, dim]. */
  out: View;
  /**
   * Statistics of rows, f32 [2, batch, numHeads, numQueries]. Forward writes the first half, the
   * log-sum-exp of each row's scores, which is -inf for a row that sees nothing. Backward reads it
   * and writes the second half, sum(dOut * out) of each row.
   */
  stats: View;
  /**
   * Numbers of any float dtype that are added to the scores: [batch, numHeads, numQueries, numKeys]
   * through maskStrides. -inf hides a key from a query.
   */
  mask: View | undefined;
  /**
   * The documents' ids, u32 or i32 [batch, numQueries], and below [batch, numKeys]; both are given
   * or neither. A query sees only keys with its own id.
   */
  querySegments: View | undefined;
  keySegments: View | undefined;
  batch: number;
  /** The heads of queries, a multiple of numKvHeads: consecutive ones share keys and values. */
  numHeads: number;
  numKvHeads: number;
  numQueries: number;
  numKeys: number;
  /** The size of a head, at most MAX_HEAD_DIM, and even for 16-bit dtypes. */
  dim: number;
  scale: number;
  /** Query i stands at position queryOffset + i, and key j at j. It may be negative. */
  queryOffset: number;
  /** Whether a query sees no key at a position after its own. */
  isCausal: boolean;
  /** How many positions away keys must be fewer than for a query to see them; 0 for no limit. */
  window: number;
  qStrides: HeadStrides;
  kStrides: HeadStrides;
  vStrides: HeadStrides;
  /** The mask's strides in elements, of which 0 broadcasts. The last one is 0 or 1. */
  maskStrides: readonly [batch: number, head: number, row: number, column: number];
  /**
   * How weights are dropped: as `dropout` drops elements [batch, numHeads, numQueries, numKeys].
   */
  dropout:
    | {
        readonly p: number;
        readonly key0: number;
        readonly key1: number;
        readonly counterOffset: number;
      }
    | undefined;
}

/** The calls of the kernels of this file; the comments state what each computes. */
export interface AttentionCalls {
  /**
   * out = dropped(softmax(scale * q k^T + mask)) v for each head, over the keys that each query
   * sees (Dao, "FlashAttention-2", 2023). Nothing of the size numQueries x numKeys is kept, and
   * blocks of which no row sees anything are skipped. A row that sees nothing is 0. A hidden key
   * does not change a row, even if it holds NaN, except on CPU drivers of webgpu, which multiply by
   * the weight 0 those keys that rows nearby see. q, k, v and out have one dtype.
   */
  attention: AttentionOperands;
  /**
   * The gradients of attention. Scores are computed again, and weights from them and stats. dq, dk
   * and dv have the sizes, strides and dtype of q, k and v, and may lie in one buffer where no
   * element belongs to two of them. Sums over the queries (dk, dv) run head by head of a group and
   * along the rows, or rows first where a device takes all heads at once; sums over the keys (dq)
   * ascend. Each device has one fixed order.
   */
  attentionBackward: AttentionOperands & {
    dOut: View; // as out
    dq: View;
    dk: View;
    dv: View;
  };
  /**
   * The gradient of the mask. It runs after attentionBackward of the same call, whose stats it
   * reads. dMask is f32 and has the mask's strides. Each element is a sum over all pairs that the
   * mask's element is broadcast to, in the order of batches, heads, queries and keys, or of parts
   * of these that the shapes decide, and 0 where all of them are hidden.
   */
  attentionMaskGradient: AttentionOperands & {
    dOut: View; // as out
    dMask: View; // as mask
  };
}
