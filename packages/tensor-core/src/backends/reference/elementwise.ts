// Functions of single elements and their derivatives, affine functions, and binary ones with
// broadcasting.

import { isFloat } from '@shardweave/dtypes';
import type { BinaryKind, UnaryKind } from '../../kernel-calls/elementwise.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import { ofKind } from '../../kind-table.js';
import type { Open } from './elements.js';
import { forEachIndex } from './strided.js';

const SQRT_2_OVER_PI = Math.sqrt(2 / Math.PI);
/** The cubic coefficient of GELU's tanh form (Hendrycks and Gimpel, 2016). */
const GELU_CUBIC = 0.044715;

/** The function of each unary kind. */
export const FUNCTIONS: Readonly<Record<UnaryKind, (x: number) => number>> = {
  neg: (x) => -x,
  abs: Math.abs,
  exp: Math.exp,
  log: Math.log,
  sqrt: Math.sqrt,
  rsqrt: (x) => 1 / Math.sqrt(x),
  square: (x) => x * x,
  reciprocal: (x) => 1 / x,
  tanh: Math.tanh,
  sigmoid,
  sin: Math.sin,
  cos: Math.cos,
  relu: (x) => Math.max(x, 0),
  silu: (x) => x * sigmoid(x),
  gelu: (x) => x * normalCdf(x),
  geluTanh: (x) => 0.5 * x * (1 + Math.tanh(geluInner(x))),
};

export const DERIVATIVES: Readonly<Record<UnaryKind, (x: number) => number>> = {
  neg: () => -1,
  abs: Math.sign,
  exp: Math.exp,
  log: (x) => 1 / x,
  sqrt: (x) => 0.5 / Math.sqrt(x),
  rsqrt: (x) => -0.5 / (x * Math.sqrt(x)),
  square: (x) => 2 * x,
  reciprocal: (x) => -1 / (x * x),
  tanh: (x) => 1 - Math.tanh(x) ** 2,
  sigmoid: (x) => sigmoid(x) * sigmoid(-x),
  sin: Math.cos,
  cos: (x) => -Math.sin(x),
  relu: (x) => (x > 0 ? 1 : 0),
  silu: (x) => sigmoid(x) * (1 + x * sigmoid(-x)),
  gelu: (x) => normalCdf(x) + (x * Math.exp(-0.5 * x * x)) / Math.sqrt(2 * Math.PI),
  geluTanh: (x) => {
    const t = Math.tanh(geluInner(x));
    const innerSlope = SQRT_2_OVER_PI * (1 + 3 * GELU_CUBIC * x * x);
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * innerSlope;
  },
};

const FLOAT_PAIRS: Readonly<Record<BinaryKind, (a: number, b: number) => number>> = {
  add: (a, b) => a + b,
  sub: (a, b) => a - b,
  mul: (a, b) => a * b,
  div: (a, b) => a / b,
  maximum: Math.max,
  minimum: Math.min,
  pow: power,
};

/** Binary functions of integers. `combiner` wraps their results modulo 2^32. */
const INTEGER_PAIRS: Readonly<Record<string, (a: number, b: number) => number>> = {
  add: (a, b) => a + b,
  sub: (a, b) => a - b,
  mul: Math.imul,
  maximum: Math.max,
  minimum: Math.min,
};

export function unary({ kind, x, out }: KernelCalls['unary'], open: Open): void {
  const from = open(x);
  const to = open(out);
  const f = ofKind('unary', FUNCTIONS, kind);
  for (let i = 0; i < to.size; i++) {
    to.set(i, f(from.get(i)));
  }
}

export function unaryBackward(call: KernelCalls['unaryBackward'], open: Open): void {
  const x = open(call.x);
  const dy = open(call.dy);
  const out = open(call.out);
  const derivative = ofKind('unaryBackward', DERIVATIVES, call.kind);
  for (let i = 0; i < out.size; i++) {
    out.set(i, dy.get(i) * derivative(x.get(i)));
  }
}

export function affine({ x, out, scale, shift }: KernelCalls['affine'], open: Open): void {
  const from = open(x);
  const to = open(out);
  for (let i = 0; i < to.size; i++) {
    to.set(i, from.get(i) * scale + shift);
  }
}

export function binary(call: KernelCalls['binary'], open: Open): void {
  const a = open(call.a);
  const b = open(call.b);
  const out = open(call.out);
  const combine = combiner(call);
  forEachIndex(call.shape, [call.aStrides, call.bStrides], (position, [aOffset, bOffset]) => {
    out.set(position, combine(a.get(aOffset!), b.get(bOffset!)));
  });
}

function combiner(call: KernelCalls['binary']): (a: number, b: number) => number {
  const { dtype } = call.out;
  if (isFloat(dtype)) {
    return ofKind('binary', FLOAT_PAIRS, call.kind);
  }
  const integers = ofKind('binary', INTEGER_PAIRS, call.kind);
  return dtype === 'i32' ? (a, b) => integers(a, b) | 0 : (a, b) => integers(a, b) >>> 0;
}

/** As C's pow, which has 1 where JavaScript's has NaN: 1 to any power, -1 to an infinite one. */
function power(a: number, b: number): number {
  return a === 1 || (a === -1 && Math.abs(b) === Number.POSITIVE_INFINITY) ? 1 : a ** b;
}

function sigmoid(x: number): number {
  return 1 / (1 + Math.exp(-x));
}

function geluInner(x: number): number {
  return SQRT_2_OVER_PI * (x + GELU_CUBIC * x ** 3);
}

/** The cumulative distribution function of the normal distribution. */
function normalCdf(x: number): number {
  return 0.5 * (1 + erf(x / Math.SQRT2));
}

/**
 * Computes the error function by its series erf(x) = 2/sqrt(pi) e^(-x^2) sum 2^n x^(2n+1) /
 * (2n+1)!!. All terms have one sign, so the result is accurate to about 1e-15.
 */
function erf(x: number): number {
  if (Math.abs(x) > 6) {
    return Math.sign(x); // erfc(6) = 2e-17, below half a unit of 1
  }
  let term = x;
  let sum = x;
  for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(sum); n++) {
    term *= (2 * x * x) / (2 * n + 1);
    sum += term;
  }
  return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum;
}
