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

/** What a gate passes its first half through. */
export type GateKind = 'silu' | 'gelu' | 'geluTanh';

/** A function of two elements. */
export type BinaryKind = 'add' | 'sub' | 'mul' | 'div' | 'maximum' | 'minimum' | 'pow';

/** A comparison; NaN is in none but 'ne'. */
export type CompareKind = 'eq' | 'ne' | 'lt' | 'le' | 'gt' | 'ge';

/**
 * What each elementwise kernel is called with, by its name; the comments state what it computes.
 */
export interface ElementwiseCalls {
  /** out[i] = value, converted to out's dtype. */
  fill: { out: View; value: number };
  /**
   * out[i] = x[i] in another dtype, any pair. Float to float rounds to nearest even and
   * keeps NaN, infinities and subnormals. Float to integer truncates toward zero and saturates,
   * NaN gives 0. Integer to integer keeps the bits.
   */
  cast: { x: View; out: View };
  /** out[i] = f(x[i]), float, in place allowed. */
  unary: { kind: UnaryKind; x: View; out: View };
  /**
   * out[i] = dy[i] * f'(x[i]), in place over dy allowed. Where f has a kink, f' is a convention:
   * relu'(0) = 0, abs'(0) = 0.
   */
  unaryBackward: { kind: UnaryKind; x: View; dy: View; out: View };
  /**
   * out[r, c] = f(gate[r, c]) * up[r, c], float, out dense [rows, cols]. Rows of gate and up are
   * `row` apart: cols, or 2 * cols where they are the halves of one operand.
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
   * Gradients of the above. Of 'gate': dy * up * f'(gate), and of 'up': dy * f(gate), both dense
   * [rows, cols]; of 'both': [rows, 2 * cols], that of gate in front.
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
   * In heads h < numRotated of x [tokens, heads, 2 * half], columns j and j + half are a point that
   * turns by position * frequency j, or back where inverse; other heads are copied. frequencies:
   * u32 [2, half], high and low words of turns * 2^64; angles are products of integers, modulo a
   * turn. Token t stands at positions[t mod period] (u32 or i32, below 2^31), or at offset + t mod
   * period.
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
  /** out[i] = x[i] * scale + shift, float, in place allowed. */
  affine: { x: View; out: View; scale: number; shift: number };
  /**
   * out = a (kind) b over `shape` (rank 1 to 6), out dense, a and b read through strides (0
   * broadcasts). Floats mix; integers must agree in dtype and have no div and pow. In place over a
   * or b where its strides are dense. One step along the last axis that is walked by itself must
   * bind.
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
   * out = 1 where a (kind) b over `shape` (rank 1 to 6), else 0; out u32, dense. Operands as
   * binary's.
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
   * out = a where condition (u32 or i32) is not 0, else b, over `shape` (rank 1 to 6), out dense; a
   * and b as binary's.
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
   * out[outOffset + sum(i*outStrides)] = x[xOffset + sum(i*xStrides)] for all i in `shape` (rank 1
   * to 6), equal dtypes, any dtype: transpose, slice, cat, expand. x strides may be 0, never
   * negative. 16-bit outputs: either dense over the whole of out with outOffset 0, or last out
   * stride 1 with outOffset, last extent and the other out strides even.
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
   * out[i] = keep(i) ? x[i] / (1 - p) : 0, in place allowed. keep(i): with e =
   * counterOffset + i, word (e mod 4) of Philox4x32-10 with key (key0, key1) and counter
   * (floor(e / 4) low 32, high 32, 0, 0) is >= floor(p * 2^32). Its own gradient kernel.
   */
  dropout: { x: View; out: View; p: number; key0: number; key1: number; counterOffset: number };
  /**
   * Random numbers, equal to the bit on all devices: out[i] = n * scale, f32 rounded to out's
   * dtype, where the integer n is made of word (e mod 4) of dropout's generator at e =
   * counterOffset + i. uniform: n = 2 floor(word / 2^8) + 1 - 2^24. normal: n / 2^21 is the normal
   * number below which lies the part (first + word * range / 2^32) / 2^32 of all, range 0 standing
   * for 2^32; see random-recipe.ts.
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
