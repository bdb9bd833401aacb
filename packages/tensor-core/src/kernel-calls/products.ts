// The calls of matrix products and of attention.

import type { View } from '../view.js';
import type { ElementwiseCalls, UnaryKind } from './elementwise.js';
import type { RowCalls } from './rows.js';

/** How far apart the parts of an operand of attention lie, in elements. Columns have stride 1. */
export interface HeadStrides {
  readonly batch: number;
  readonly head: number;
  readonly row: number;
}

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

/** Returns the reductions, [k, inner] to [inner], that a product's aSums or bSums stand for. */
export function sumsOf({ a, b, m, n, aSums, bSums }: ProductCalls['matmul']) {
  return [
    ...(aSums === undefined ? [] : [{ x: a, out: aSums, inner: m }]),
    ...(bSums === undefined ? [] : [{ x: b, out: bSums, inner: n }]),
  ];
}

/** The unary kinds that a product's epilogue can apply. */
export const ACTIVATION_KINDS = [
  'relu',
  'silu',
  'gelu',
  'geluTanh',
] as const satisfies readonly UnaryKind[];

/** A unary kind that a product's epilogue can apply. */
export type Activation = (typeof ACTIVATION_KINDS)[number];

/**
 * The last step of a product, which does what another kernel would do with `out` in place. `out`
 * then has one batch and is dense, except under 'crossEntropyBackward'. The views of 'add',
 * 'activate' and 'slope' have the shape of `out` and are dense as well.
 */
export type Epilogue =
  /** out becomes addend + out. */
  | { readonly kind: 'add'; readonly addend: View }
  /** `activated` becomes the activation of out, which stays as it is. */
  | { readonly kind: 'activate'; readonly activation: Activation; readonly activated: View }
  /** out becomes out * activation'(at). */
  | { readonly kind: 'slope'; readonly activation: Activation; readonly at: View }
  /**
   * The kernel crossEntropyBackward runs over out, whose rows are `outRow` elements apart. The
   * logits are the sums in f32, also where out has 16 bits, which receives the rounded gradient.
   * The columns from n on are undefined afterwards.
   */
  | ({ readonly kind: 'crossEntropyBackward' } & Pick<
      RowCalls['crossEntropyBackward'],
      'targets' | 'lse' | 'dLoss' | 'first' | 'classes'
    >);

/** The kernels that do what epilogues do. */
export interface EpilogueKernels {
  binary(call: ElementwiseCalls['binary']): void;
  unary(call: ElementwiseCalls['unary']): void;
  unaryBackward(call: ElementwiseCalls['unaryBackward']): void;
  crossEntropyBackward(call: RowCalls['crossEntropyBackward']): void;
}

/** Whether the epilogue needs the product in f32, which its output has no room for. */
export function hasWideLogits({ epilogue, out }: ProductCalls['matmul']): boolean {
  return epilogue?.kind === 'crossEntropyBackward' && out.dtype !== 'f32';
}

/** Returns the call of crossEntropyBackward that a product's epilogue of that kind stands for. */
export function slopesOf(
  { epilogue, out, m, outRow }: ProductCalls['matmul'],
  logits: View,
): RowCalls['crossEntropyBackward'] {
  const { kind: _, ...rest } = epilogue as Extract<Epilogue, { kind: 'crossEntropyBackward' }>;
  return { ...rest, logits, out, rows: m, cols: outRow };
}

/** Runs a product's epilogue, if it has one, as a kernel of its own. */
export function runEpilogue(call: ProductCalls['matmul'], kernels: EpilogueKernels): void {
  const { epilogue, out } = call;
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
    case 'crossEntropyBackward':
      kernels.crossEntropyBackward(slopesOf(call, out));
      break;
  }
}

/** The largest head size of attention. */
export const MAX_HEAD_DIM = 256;

/**
 * What the kernels of matrix products and of attention are called with, by their names; the
 * comments state what each computes.
 */
export interface ProductCalls {
  /**
   * out[i] = alpha * op(a[i]) x op(b[i]) + bias (+ out[i] if accumulate), for each i of outer x
   * inner batches. op(a) is m x k, stored as [m, k] or, if transposeA, as [k, m], with row stride
   * aRow. op(b) is k x n, stored as [k, n] or, if transposeB, as [n, k], with row stride bRow. out
   * is [m, n] with row stride outRow, and bias [n]. Columns have stride 1. Batch strides of a and b
   * may be 0. A 16-bit out is dense, or n, outRow and its batch strides are even, except under
   * 'crossEntropyBackward'. Two stored rows of each operand must bind.
   *
   * aSums or bSums, not both, get the sums over k of op(a) or op(b), without alpha, in any float
   * dtype: [m] of a dense a with transposeA, or [n] of a dense b without transposeB. There is one
   * batch then. A bias's gradient is such a sum beside the product of its weight's. The epilogue
   * comes last.
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
