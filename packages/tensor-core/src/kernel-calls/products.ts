// Matrix products and attention.

import type { View } from '../view.js';
import type { ElementwiseCalls, UnaryKind } from './elementwise.js';
import type { RowCalls } from './rows.js';

/** How far apart the parts of one operand of attention lie, in elements; columns have stride 1. */
export interface HeadStrides {
  readonly batch: number;
  readonly head: number;
  readonly row: number;
}

/** What both passes of attention take. */
export interface AttentionOperands {
  /** Queries: rows [batch, numHeads, numQueries, dim] through qStrides. */
  q: View;
  /** Keys: rows [batch, numKvHeads, numKeys, dim] through kStrides. */
  k: View;
  /** Values, as the keys, through vStrides. */
  v: View;
  /** Rows as the queries', dense as [batch, numQueries, numHeads, dim]. */
  out: View;
  /**
   * f32 [2, batch, numHeads, numQueries]. Forward writes the first half: log-sum-exp of each row's
   * scores, -inf where it sees nothing. Backward reads it and writes the second: sum(dOut * out) of
   * each row.
   */
  stats: View;
  /**
   * Added to the scores, any float, [batch, numHeads, numQueries, numKeys] through maskStrides;
   * -inf hides.
   */
  mask: View | undefined;
  /**
   * u32 or i32 [batch, numQueries] and [batch, numKeys], both or none: a query sees keys of its own
   * number.
   */
  querySegments: View | undefined;
  keySegments: View | undefined;
  batch: number;
  /** A multiple of numKvHeads: consecutive query heads share keys and values. */
  numHeads: number;
  numKvHeads: number;
  numQueries: number;
  numKeys: number;
  /** At most MAX_HEAD_DIM; in 16 bits even. */
  dim: number;
  scale: number;
  /** Query i stands at position queryOffset + i, key j at j. A whole number, of either sign. */
  queryOffset: number;
  /** Whether a query sees no key behind its own position. */
  isCausal: boolean;
  /** Above 0: a query sees keys that are less than so many positions away. */
  window: number;
  qStrides: HeadStrides;
  kStrides: HeadStrides;
  vStrides: HeadStrides;
  /** May be 0; the last is 0 or 1. */
  maskStrides: readonly [batch: number, head: number, row: number, column: number];
  /** Drops weights as `dropout` does elements of [batch, numHeads, numQueries, numKeys]. */
  dropout:
    | {
        readonly p: number;
        readonly key0: number;
        readonly key1: number;
        readonly counterOffset: number;
      }
    | undefined;
}

/** What the sums of a product are reductions of: [k, inner] to [inner]. */
export function sumsOf({ a, b, m, n, aSums, bSums }: ProductCalls['matmul']) {
  return [
    ...(aSums === undefined ? [] : [{ x: a, out: aSums, inner: m }]),
    ...(bSums === undefined ? [] : [{ x: b, out: bSums, inner: n }]),
  ];
}

/** All activations: the unary kinds that a product can end with. */
export const ACTIVATION_KINDS = [
  'relu',
  'silu',
  'gelu',
  'geluTanh',
] as const satisfies readonly UnaryKind[];

/** A unary kind that a product can end with, by an epilogue. */
export type Activation = (typeof ACTIVATION_KINDS)[number];

/**
 * What a product ends with: it leaves what another kernel would make of `out`, in place. `out` then
 * has one batch and is dense, except under 'crossEntropyBackward'. The views of an epilogue that
 * are added, activated or differentiated have the shape of `out`, and are dense too.
 */
export type Epilogue =
  /** out + addend. */
  | { readonly kind: 'add'; readonly addend: View }
  /** `activated` becomes the activation of what out holds. */
  | { readonly kind: 'activate'; readonly activation: Activation; readonly activated: View }
  /** out * activation'(at). */
  | { readonly kind: 'slope'; readonly activation: Activation; readonly at: View }
  /**
   * The kernel crossEntropyBackward, on rows that are `outRow` apart. Columns from the n-th on are
   * undefined afterwards.
   */
  | ({ readonly kind: 'crossEntropyBackward' } & Pick<
      RowCalls['crossEntropyBackward'],
      'targets' | 'lse' | 'dLoss' | 'first' | 'classes'
    >);

/** The kernels that epilogues stand for. */
export interface EpilogueKernels {
  binary(call: ElementwiseCalls['binary']): void;
  unary(call: ElementwiseCalls['unary']): void;
  unaryBackward(call: ElementwiseCalls['unaryBackward']): void;
  crossEntropyBackward(call: RowCalls['crossEntropyBackward']): void;
}

/** Runs a product's epilogue, if it has one, as a kernel of its own. */
export function runEpilogue(call: ProductCalls['matmul'], kernels: EpilogueKernels): void {
  const { epilogue, out, m, outRow } = call;
  switch (epilogue?.kind) {
    case 'add': {
      const dense = { shape: [out.size], aStrides: [1], bStrides: [1] };
      kernels.binary({ kind: 'add', a: epilogue.addend, b: out, out, ...dense });
      break;
    }
    case 'activate':
      kernels.unary({ kind: epilogue.activation, x: out, out: epilogue.activated });
      break;
    case 'slope':
      kernels.unaryBackward({ kind: epilogue.activation, x: epilogue.at, dy: out, out });
      break;
    case 'crossEntropyBackward': {
      const { kind, ...rest } = epilogue;
      kernels.crossEntropyBackward({ ...rest, logits: out, out, rows: m, cols: outRow });
      break;
    }
  }
}

/** Largest head of attention. */
export const MAX_HEAD_DIM = 256;

/**
 * What the kernels of matrix products and of attention are called with, by their names; the
 * comments state what each computes.
 */
export interface ProductCalls {
  /**
   * out[b] = alpha * op(a[b]) x op(b[b]) + bias (+ out[b] if accumulate), for outer x inner
   * batches. op(a) is m x k: stored [m, k] with row stride aRow, or if transposeA [k, m] with row
   * stride aRow; op(b) is k x n: stored [k, n], or if transposeB [n, k], with row stride bRow; out
   * [m, n] with row stride outRow. Columns have stride 1. Batch strides may be 0 for a and b. bias:
   * [n]. 16-bit out: dense, or n, outRow and the batch strides even. Two stored rows of each
   * operand must bind. aSums or bSums, not both: sums of one batch's op(a) or op(b) over k, without
   * alpha, as the gradient of a bias is made beside its weight's: [m] of a dense a with transposeA,
   * [n] of a dense b without transposeB, any float. What the epilogue does comes last.
   */
  matmul: {
    a: View;
    b: View;
    out: View;
    bias: View | undefined;
    aSums?: View | undefined;
    bSums?: View | undefined;
    epilogue?: Epilogue | undefined;
    m: number;
    n: number;
    k: number;
    transposeA: boolean;
    transposeB: boolean;
    aRow: number;
    bRow: number;
    outRow: number;
    batch: readonly [outer: number, inner: number];
    aBatch: readonly [outer: number, inner: number];
    bBatch: readonly [outer: number, inner: number];
    outBatch: readonly [outer: number, inner: number];
    alpha: number;
    accumulate: boolean;
  };
  /**
   * out = dropped(softmax(scale * q k^T + mask)) v by head, over the keys that each query sees
   * (Dao, "FlashAttention-2", 2023): nothing of numQueries x numKeys is kept, and blocks that no
   * row of theirs sees are passed over. A row that sees nothing is 0. A key that a row doesn't see
   * reaches nothing of it, NaN neither, but on CPU drivers of webgpu, which multiply NaN by the
   * weight 0 of keys that rows nearby see. q, k, v and out have one dtype.
   */
  attention: AttentionOperands;
  /**
   * Gradients of the above, scores computed again and their weights from stats: dq, dk and dv are
   * of the sizes, strides and dtype of q, k and v, and of one buffer where their elements are
   * apart. Sums over the queries (dk, dv) run head by head of a group and along the rows, or rows
   * first where a device takes all heads at once; those over the keys (dq) ascend. The order is
   * fixed.
   */
  attentionBackward: AttentionOperands & {
    dOut: View; // as out
    dq: View;
    dk: View;
    dv: View;
  };
  /**
   * Gradient of the mask, behind attentionBackward of the same call, whose stats it reads: dMask is
   * f32, as dense as the mask, and each element the sum over what the mask is broadcast over, in
   * the order of batches, heads, queries and keys. Where all is hidden it is 0.
   */
  attentionMaskGradient: AttentionOperands & {
    dOut: View; // as out
    dMask: View; // as mask
  };
}
