// The calls of matrix products.

import type { View } from '../view.js';
import type { CrossEntropyCalls } from './cross-entropy.js';
import type { ElementwiseCalls, UnaryKind } from './elementwise.js';

/** Returns the reductions, [k, inner] to [inner], that a product's aSums or bSums stand for. */
export function sumsOf({ a, b, m, n, aSums, bSums }: MatmulCalls['matmul']) {
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
      CrossEntropyCalls['crossEntropyBackward'],
      'targets' | 'lse' | 'dLoss' | 'first' | 'classes'
    >);

/** The kernels that do what epilogues do. */
export interface EpilogueKernels {
  binary(call: ElementwiseCalls['binary']): void;
  unary(call: ElementwiseCalls['unary']): void;
  unaryBackward(call: ElementwiseCalls['unaryBackward']): void;
  crossEntropyBackward(call: CrossEntropyCalls['crossEntropyBackward']): void;
}

/** Whether the epilogue needs the product in f32, which its output has no room for. */
export function hasWideLogits({ epilogue, out }: MatmulCalls['matmul']): boolean {
  return epilogue?.kind === 'crossEntropyBackward' && out.dtype !== 'f32';
}

/** Returns the call of crossEntropyBackward that a product's epilogue of that kind stands for. */
export function slopesOf(
  { epilogue, out, m, outRow }: MatmulCalls['matmul'],
  logits: View,
): CrossEntropyCalls['crossEntropyBackward'] {
  const { kind: _, ...rest } = epilogue as Extract<Epilogue, { kind: 'crossEntropyBackward' }>;
  return { ...rest, logits, out, rows: m, cols: outRow };
}

/** Runs a product's epilogue, if it has one, as a kernel of its own. */
export function runEpilogue(call: MatmulCalls['matmul'], kernels: EpilogueKernels): void {
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

/** The call of the kernel of this file; the comment states what it computes. */
export interface MatmulCalls {
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
}
