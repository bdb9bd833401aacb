// Elementwise functions: of one tensor, of two with broadcasting, or of a tensor and a number.

import { type DType, isFloat } from '@shardweave/dtypes';
import { checkOptions, checkValue } from '../check-options.js';
import type { BinaryKind, UnaryKind } from '../kernel-calls/elementwise.js';
import { ACTIVATION_KINDS, type Activation } from '../kernel-calls/matmul.js';
import { oneOf } from '../options.js';
import { Tensor } from '../tensor.js';
import { cast } from './cast.js';
import {
  broadcastShapes,
  broadcastStrides,
  collapseAxes,
  commonDType,
  requireFloat,
  requireSameDevice,
  requireWalkable,
} from './checks.js';
import { eq, ge, numberBeside, where } from './compare.js';
import { sumTo } from './sum-to.js';

/**
 * -x. Integers wrap around: that of i32's smallest is itself, and that of 1 as u32 is 2^32 - 1.
 */
export function neg(x: Tensor): Tensor {
  if (!isFloat(x.dtype)) {
    return x.device.scope(() => binary('sub', x.device.zeros([], { dtype: x.dtype }), x));
  }
  const out = runUnary('neg', x);
  x.device.record({
    name: 'neg',
    inputs: [x],
    outputs: [out],
    saved: [], // the derivative needs no x
    backward: ([dy]) => [neg(dy!)],
  });
  return out;
}
/**
 * The absolute value, of floats; its gradient at 0 is 0.
 * @throws {DTypeError} for integers
 */
export const abs = (x: Tensor): Tensor => unary('abs', x);
/**
 * e^x, of floats; f32 overflows to infinity above about 88.7.
 * @throws {DTypeError} for integers
 */
export const exp = (x: Tensor): Tensor => unary('exp', x);
/**
 * The natural logarithm, of floats.
 * @throws {DTypeError} for integers
 */
export const log = (x: Tensor): Tensor => unary('log', x);
/**
 * The square root, of floats; NaN below 0.
 * @throws {DTypeError} for integers
 */
export const sqrt = (x: Tensor): Tensor => unary('sqrt', x);
/**
 * 1 / sqrt(x), of floats.
 * @throws {DTypeError} for integers
 */
export const rsqrt = (x: Tensor): Tensor => unary('rsqrt', x);
/**
 * x * x, of floats.
 * @throws {DTypeError} for integers
 */
export const square = (x: Tensor): Tensor => unary('square', x);
/**
 * 1 / x, of floats.
 * @throws {DTypeError} for integers
 */
export const reciprocal = (x: Tensor): Tensor => unary('reciprocal', x);
/**
 * The hyperbolic tangent, of floats.
 * @throws {DTypeError} for integers
 */
export const tanh = (x: Tensor): Tensor => unary('tanh', x);
/**
 * The logistic function, 1 / (1 + e^-x), of floats.
 * @throws {DTypeError} for integers
 */
export const sigmoid = (x: Tensor): Tensor => unary('sigmoid', x);
/**
 * The sine of x in radians, of floats, however large x is.
 * @throws {DTypeError} for integers
 */
export const sin = (x: Tensor): Tensor => unary('sin', x);
/**
 * The cosine of x in radians, of floats, however large x is.
 * @throws {DTypeError} for integers
 */
export const cos = (x: Tensor): Tensor => unary('cos', x);
/**
 * max(x, 0), of floats; its gradient at 0 is 0.
 * @throws {DTypeError} for integers
 */
export const relu = (x: Tensor): Tensor => unary('relu', x);

/**
 * x times sigmoid(x), of floats (Hendrycks and Gimpel, 2016; also called swish).
 * @throws {DTypeError} for integers
 */
export const silu = (x: Tensor): Tensor => unary('silu', x);

/**
 * x times the cumulative distribution function of the standard normal distribution at x, of floats
 * (Hendrycks and Gimpel, 2016).
 * @param options.approximate 'none' for the error function (the default), or 'tanh' for the
 * approximation by tanh, which GPT-2 uses
 * @throws {DTypeError} for integers
 */
export function gelu(x: Tensor, options: { readonly approximate?: 'none' | 'tanh' } = {}): Tensor {
  checkOptions<{ approximate: string }>('gelu', options, {
    approximate: oneOf('none', 'tanh'),
  });
  return unary(options.approximate === 'tanh' ? 'geluTanh' : 'gelu', x);
}

/**
 * Applies the activation with the given name.
 * @throws {OptionError} for another name
 */
export function activate(x: Tensor, kind: Activation): Tensor {
  checkValue('activate', 'kind', kind, oneOf(...ACTIVATION_KINDS));
  return unary(kind, x);
}

/**
 * a + b, with broadcasting. Two tensors are floats, or integers of one dtype; two different float
 * dtypes give f32. Beside a number, a keeps its dtype, and an integer tensor takes a whole number
 * that its dtype holds. Results of integers wrap around: they are those modulo 2^32.
 * @throws {ShapeError} when the shapes do not broadcast
 * @throws {DTypeError} for other combinations of dtypes, and other numbers beside integers
 */
export const add = (a: Tensor, b: Tensor | number): Tensor =>
  typeof b === 'number' ? withNumber('add', a, b, [1, b]) : binary('add', a, b);
/** a - b, with broadcasting and dtypes as in `add`. */
export const sub = (a: Tensor, b: Tensor | number): Tensor =>
  typeof b === 'number' ? withNumber('sub', a, b, [1, -b]) : binary('sub', a, b);
/** a * b, with broadcasting and dtypes as in `add`. */
export const mul = (a: Tensor, b: Tensor | number): Tensor =>
  typeof b === 'number' ? withNumber('mul', a, b, [b, 0]) : binary('mul', a, b);
/**
 * a / b of floats, with broadcasting and dtypes as in `add`. A number divides as the product with
 * its reciprocal, which is rounded to f32.
 * @throws {DTypeError} for integers
 */
export const div = (a: Tensor, b: Tensor | number): Tensor =>
  typeof b === 'number' ? quotient(a, b) : binary('div', a, b);
/** The larger of each pair, with broadcasting; equal operands get half of the gradient each. */
export const maximum = (a: Tensor, b: Tensor): Tensor => binary('maximum', a, b);
/** The smaller of each pair, with broadcasting; equal operands get half of the gradient each. */
export const minimum = (a: Tensor, b: Tensor): Tensor => binary('minimum', a, b);

/**
 * a to the power b, of floats, with broadcasting, with the special values of C's pow: anything to
 * the power 0 is 1, and so is 1 to any power. The gradient of b contains log(a), so it is NaN for
 * a < 0; at a = 0 it is 0 for b >= 0, as PyTorch's.
 * @throws {DTypeError} for integers
 */
export function pow(a: Tensor, b: Tensor | number): Tensor {
  if (typeof b !== 'number') {
    return binary('pow', a, b);
  }
  requireFloat('pow', a);
  // The exponent stays f32 beside a 16-bit a, since 1/3 rounded to 16 bits is another power.
  return a.device.scope(() => binary('pow', a, a.device.full([], b), a.dtype));
}

/**
 * x * scale + shift, of floats, in x's dtype.
 * @throws {DTypeError} for integers
 */
export function affine(x: Tensor, scale: number, shift: number): Tensor {
  return scaled('affine', x, scale, shift);
}

/** An op of a tensor and a number: a * scale + shift of floats, the op itself of integers. */
function withNumber(
  kind: 'add' | 'sub' | 'mul',
  a: Tensor,
  b: number,
  [scale, shift]: readonly [scale: number, shift: number],
): Tensor {
  if (isFloat(a.dtype)) {
    return scaled(kind, a, scale, shift);
  }
  return a.device.scope(() => binary(kind, a, numberBeside(kind, b, a, a.dtype)));
}

/** The smallest f32 with all its digits, below which GPUs may take numbers for 0. */
const SMALLEST_NORMAL = 2 ** -126;
/** A power of two between 1 and the bounds of f32, by which a product changes no digit. */
const HALFWAY = 2 ** 64;

/**
 * a / b by a product with 1 / b, in two steps where 1 / b has no normal f32: with b = 1e-40 it is
 * beyond f32, and yet 1e-38 / b is 100.
 */
function quotient(a: Tensor, b: number): Tensor {
  const inverse = 1 / b;
  const isLarge = b !== 0 && !Number.isFinite(Math.fround(inverse));
  const isSmall = inverse !== 0 && Math.abs(inverse) < SMALLEST_NORMAL;
  requireFloat('div', a);
  if (!isLarge && !isSmall) {
    return scaled('div', a, inverse, 0);
  }
  const first = isLarge ? HALFWAY : 1 / HALFWAY;
  return a.device.scope(() => {
    const half = scaled('div', cast(a, 'f32'), first, 0);
    return cast(scaled('div', half, inverse / first, 0), a.dtype);
  });
}

function scaled(op: string, x: Tensor, scale: number, shift: number): Tensor {
  requireFloat(op, x);
  const { device } = x;
  const out = device.empty(x.shape, { dtype: x.dtype });
  if (out.size > 0) {
    device.run('affine', { x: x.view(), out: out.view(), scale, shift });
  }
  device.record({
    name: op,
    inputs: [x],
    outputs: [out],
    saved: [],
    backward: ([dy]) => [scale === 1 ? dy : affine(dy!, scale, 0)],
  });
  return out;
}

function unary(kind: UnaryKind, x: Tensor): Tensor {
  requireFloat(kind, x);
  const out = runUnary(kind, x);
  if (isActivation(kind)) {
    // The record tells a product that takes the result that it may multiply its gradient by the
    // activation's slope in its own backward kernel.
    recordActivation(kind, x, out);
    return out;
  }
  x.device.record({
    name: kind,
    inputs: [x],
    outputs: [out],
    saved: [x],
    backward: ([dy]) => [runUnaryBackward(kind, x, dy!)],
  });
  return out;
}

function isActivation(kind: UnaryKind): kind is Activation {
  return (ACTIVATION_KINDS as readonly UnaryKind[]).includes(kind);
}

/**
 * Records that `out` is the activation of x. The node carries an ActivationNote (autograd/node.ts),
 * by which a product that takes `out` as its operand can fuse the two gradients.
 */
export function recordActivation(kind: Activation, x: Tensor, out: Tensor): void {
  const through = new Tensor(x.storage, x.shape, x.offset);
  x.device.record({
    name: kind,
    inputs: [x],
    outputs: [out, through],
    saved: [x],
    activation: { kind, through, numProducts: 0 },
    backward: ([dy, dx]) => {
      const own = dy && runUnaryBackward(kind, x, dy);
      return [own === undefined || dx === undefined ? (own ?? dx) : add(own, dx)];
    },
  });
}

function runUnary(kind: UnaryKind, x: Tensor): Tensor {
  const out = x.device.empty(x.shape, { dtype: x.dtype });
  if (out.size > 0) {
    x.device.run('unary', { kind, x: x.view(), out: out.view() });
  }
  return out;
}

/** The gradient of a unary function f, dy * f'(x), in x's dtype. */
function runUnaryBackward(kind: UnaryKind, x: Tensor, dy: Tensor): Tensor {
  const out = x.device.empty(x.shape, { dtype: x.dtype });
  if (out.size > 0) {
    const views = { x: x.view(), dy: dy.view(), out: out.view() };
    x.device.run('unaryBackward', { kind, ...views });
  }
  return out;
}

function binary(kind: BinaryKind, a: Tensor, b: Tensor, outDType?: DType): Tensor {
  requireSameDevice(kind, a, b);
  const dtype = outDType ?? commonDType(kind, a, b);
  const { device } = a;
  const shape = broadcastShapes(kind, a.shape, b.shape);
  const out = device.empty(shape, { dtype });
  if (out.size > 0) {
    runBinary(kind, a, b, out);
  }
  if (!isFloat(dtype)) {
    return out;
  }
  device.record({
    name: kind,
    inputs: [a, b],
    outputs: [out],
    saved: savedBy(kind, a, b),
    backward: ([dy], needs) => {
      const toA = needs[0] ? gradientToFirst(kind, a, b, dy!) : undefined;
      const toB = needs[1] ? gradientToSecond(kind, a, b, dy!) : undefined;
      return [toA && fold(toA, a), toB && fold(toB, b)];
    },
  });
  return out;
}

function runBinary(kind: BinaryKind, a: Tensor, b: Tensor, out: Tensor): void {
  const strides = [a, b].map((operand) => broadcastStrides(operand.shape, out.shape));
  const [shape, [aStrides, bStrides]] = collapseAxes(out.shape, strides);
  requireWalkable(kind, shape, a.shape, b.shape);
  out.device.run('binary', {
    kind,
    a: a.view(),
    b: b.view(),
    out: out.view(),
    shape,
    aStrides: aStrides!,
    bStrides: bStrides!,
  });
}

function savedBy(kind: BinaryKind, a: Tensor, b: Tensor): Tensor[] {
  if (kind === 'add' || kind === 'sub') {
    return [];
  }
  if (kind === 'div') {
    return b.requiresGrad ? [a, b] : [b];
  }
  if (kind !== 'mul') {
    return [a, b];
  }
  return [...(b.requiresGrad ? [a] : []), ...(a.requiresGrad ? [b] : [])];
}

function gradientToFirst(kind: BinaryKind, a: Tensor, b: Tensor, dy: Tensor): Tensor {
  switch (kind) {
    case 'add':
    case 'sub':
      return dy;
    case 'mul':
      return mul(dy, b);
    case 'div':
      return div(dy, b);
    case 'pow':
      // The slope b a^(b - 1) is 0 for b = 0, although 0^-1 is infinite.
      return mul(mul(cast(dy, 'f32'), b), pow(cast(a, 'f32'), where(eq(b, 0), 0, add(b, -1))));
    case 'maximum':
    case 'minimum':
      return shareOf(kind, a, b, dy);
  }
}

function gradientToSecond(kind: BinaryKind, a: Tensor, b: Tensor, dy: Tensor): Tensor {
  switch (kind) {
    case 'add':
      return dy;
    case 'sub':
      return neg(dy);
    case 'mul':
      return mul(dy, a);
    case 'div':
      // The gradient is -dy * a / b^2; dividing twice avoids b^2, which could overflow in f16.
      return neg(div(div(mul(cast(dy, 'f32'), a), b), b));
    case 'pow':
      // The slope a^b log(a) is 0 for a = 0 and b >= 0, although log(0) is infinite.
      return mul(
        mul(cast(dy, 'f32'), pow(a, b)),
        log(where(mul(eq(a, 0), ge(b, 0)), 1, cast(a, 'f32'))),
      );
    case 'maximum':
    case 'minimum':
      return shareOf(kind, b, a, dy);
  }
}

/** The gradient of one operand of maximum or minimum: dy where it won, dy / 2 at ties, else 0. */
function shareOf(kind: 'maximum' | 'minimum', chosen: Tensor, other: Tensor, dy: Tensor): Tensor {
  const difference = kind === 'maximum' ? sub(chosen, other) : sub(other, chosen);
  // Two equal infinities tie as well, but their difference is NaN.
  const lead = where(eq(chosen, other), 0, difference);
  const half = affine(dy, 0.5, 0);
  return add(half, runUnaryBackward('abs', lead, half)); // |x|' is the sign, 0 at 0
}

/** Sums a gradient over the axes along which its operand was broadcast, in the operand's dtype. */
function fold(gradient: Tensor, operand: Tensor): Tensor {
  return cast(sumTo(gradient, operand.shape), operand.dtype);
}
