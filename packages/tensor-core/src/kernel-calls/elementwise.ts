// Kernels that compute each element from those at the same place of one or two operands.

import type { View } from '../view.js';

/**
 * A function of one float. `gelu` is the exact form by erf, `geluTanh` its approximation by tanh,
 * and `silu` x * sigmoid(x).
 */
export type UnaryKind =
  | 'neg'
  | 'abs'
  | 'exp'
  | 'log'
  | 'sqrt'
  | 'rsqrt'
  | 'square'
  | 'reciprocal'
  | 'tanh'
  | 'sigmoid'
  | 'sin'
  | 'cos'
  | 'relu'
  | 'silu'
  | 'gelu'
  | 'geluTanh';

/** A function of two elements. */
export type BinaryKind = 'add' | 'sub' | 'mul' | 'div' | 'maximum' | 'minimum' | 'pow';

/** The calls of the kernels of this file; the comments state what each computes. */
export interface ElementwiseCalls {
  /** out[i] = f(x[i]) of floats. It may run in place. */
  unary: { kind: UnaryKind; x: View; out: View };
  /**
   * out[i] = dy[i] * f'(x[i]). It may run in place over dy. Where f has a kink, f' is a convention:
   * relu'(0) = 0, abs'(0) = 0.
   */
  unaryBackward: { kind: UnaryKind; x: View; dy: View; out: View };
  /** out[i] = x[i] * scale + shift of floats. It may run in place. */
  affine: { x: View; out: View; scale: number; shift: number };
  /**
   * out = a (kind) b over `shape` (rank 1 to 6), where out is dense and a and b are read through
   * strides, of which 0 broadcasts. Float dtypes may differ; integers must have one dtype and have
   * no div and pow. It may run in place over a or b where that operand's strides are dense. One
   * step along the last axis that is walked by itself must bind.
   */
  binary: {
    kind: BinaryKind;
    a: View;
    b: View;
    out: View;
    shape: readonly number[];
    aStrides: readonly number[];
    bStrides: readonly number[];
  };
}
