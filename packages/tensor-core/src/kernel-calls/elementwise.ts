// Kernels that compute each element from the same places of their inputs, or from numbers alone.

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

/** The activation that a gate applies to its first operand. */
export type GateKind = 'silu' | 'gelu' | 'geluTanh';

/** A function of two elements. */
export type BinaryKind = 'add' | 'sub' | 'mul' | 'div' | 'maximum' | 'minimum' | 'pow';

/** A comparison. With NaN all are false but 'ne', which is true. */
export type CompareKind = 'eq' | 'ne' | 'lt' | 'le' | 'gt' | 'ge';

/**
 * What each elementwise kernel is called with, by its name; the comments state what it computes.
 */
export interface ElementwiseCalls {
  /** out[i] = value, converted to out's dtype. */
  fill: { out: View; value: number };
  /**
   * out[i] = x[i] in another dtype, for any pair of dtypes. Float to float rounds to nearest even
   * and keeps NaN, infinities and subnormals. Float to integer truncates toward zero and saturates,
   * and NaN gives 0. Integer to integer keeps the bits.
   */
  cast: { x: View; out: View };
  /** out[i] = f(x[i]) of floats. It may run in place. */
  unary: { kind: UnaryKind; x: View; out: View };
  /**
   * out[i] = dy[i] * f'(x[i]). It may run in place over dy. Where f has a kink, f' is a convention:
   * relu'(0) = 0, abs'(0) = 0.
   */
  unaryBackward: { kind: UnaryKind; x: View; dy: View; out: View };
  /**
   * out[r, c] = f(gate[r, c]) * up[r, c] of floats, where out is dense [rows, cols]. Rows of gate
   * and up are `row` elements apart: cols, or 2 * cols where they are the halves of one operand.
   */
  gated: {
    kind: GateKind;
    gate: View;
    up: View;
    out: View;
    rows: number;
    cols: number;
    row: number;
  };
  /**
   * The gradients of gated. With `of` 'gate', out = dy * up * f'(gate), and with 'up', out = dy *
   * f(gate), both dense [rows, cols]. With 'both', out is [rows, 2 * cols] and has gate's first.
   */
  gatedBackward: {
    kind: GateKind;
    of: 'gate' | 'up' | 'both';
    gate: View;
    up: View;
    dy: View;
    out: View;
    rows: number;
    cols: number;
    row: number;
  };
  /**
   * In the heads h < numRotated of x [tokens, heads, 2 * half], columns j and j + half are a point
   * that turns by position * frequency j, or turns back if isInverse; other heads are copied.
   * frequencies is u32 [2, half] and holds the high and the low words of turns * 2^64, so that
   * angles are products of integers, modulo a turn. Token t stands at positions[t mod period] (u32
   * or i32, below 2^31), or at offset + t mod period.
   */
  rotary: {
    x: View;
    frequencies: View;
    positions: View | undefined; // [period]
    out: View;
    tokens: number;
    heads: number;
    numRotated: number;
    half: number;
    period: number;
    offset: number;
    isInverse: boolean;
  };
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
  /**
   * out = 1 where a (kind) b holds, else 0, over `shape` (rank 1 to 6); out is u32 and dense. The
   * operands are as in binary.
   */
  compare: {
    kind: CompareKind;
    a: View;
    b: View;
    out: View;
    shape: readonly number[];
    aStrides: readonly number[];
    bStrides: readonly number[];
  };
  /**
   * out = a where condition (u32 or i32) is not 0, else b, over `shape` (rank 1 to 6); out is
   * dense. The operands are as in binary.
   */
  where: {
    condition: View;
    a: View;
    b: View;
    out: View;
    shape: readonly number[];
    conditionStrides: readonly number[];
    aStrides: readonly number[];
    bStrides: readonly number[];
  };
  /**
   * out[outOffset + sum(i * outStrides)] = x[xOffset + sum(i * xStrides)] for all i in `shape`
   * (rank 1 to 6), of any dtype that x and out share: it makes transposes, slices, concatenations
   * and expansions. Strides of x may be 0, but not negative. A 16-bit out is either dense as a
   * whole with outOffset 0, or its last stride is 1, and outOffset, the last extent and the other
   * strides are even.
   */
  copyStrided: {
    x: View;
    out: View;
    shape: readonly number[];
    xOffset: number;
    xStrides: readonly number[];
    outOffset: number;
    outStrides: readonly number[];
  };
  /**
   * out[i] = keep(i) ? x[i] / (1 - p) : 0. It may run in place. With e = counterOffset + i, keep(i)
   * is whether word (e mod 4) of Philox4x32-10 with key (key0, key1) and counter (floor(e / 4) low
   * 32, high 32, 0, 0) is >= floor(p * 2^32). The gradient is the same kernel over dy.
   */
  dropout: { x: View; out: View; p: number; key0: number; key1: number; counterOffset: number };
  /**
   * Random numbers that are equal to the bit on all devices: out[i] = n * scale, computed in f32
   * and rounded to out's dtype. The integer n is made of word (e mod 4) of dropout's generator at e
   * = counterOffset + i. For 'uniform' n = 2 floor(word / 2^8) + 1 - 2^24. For 'normal' n / 2^21 is
   * the normal number below which the part (first + word * range / 2^32) / 2^32 of the distribution
   * lies, where range 0 stands for 2^32; see random-recipe.ts.
   */
  random: {
    kind: 'uniform' | 'normal';
    out: View;
    key0: number;
    key1: number;
    counterOffset: number;
    scale: number;
    first: number;
    range: number;
  };
}
