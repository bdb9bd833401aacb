// Functions of each element: one operand, two with broadcasting, or one and a number.

import { type DType, isFloat } from '@shardweave/dtypes';
import type { BinaryKind, UnaryKind } from '../backend.js';
import { DTypeError } from '../errors.js';
import { type Shape, Tensor } from '../tensor.js';
import { cast } from './cast.js';
import {
  broadcastShapes,
  broadcastStrides,
  denseStrides,
  isSameShape,
  requireBindable,
  requireFloat,
  requireSameDevice,
} from './checks.js';
import { sumTo } from './reduce.js';

export const neg = (x: Tensor): Tensor => unary('neg', x);
/** |x|; its gradient at 0 is 0. */
export const abs = (x: Tensor): Tensor => unary('abs', x);
export const exp = (x: Tensor): Tensor => unary('exp', x);
/** Natural logarithm. */
export const log = (x: Tensor): Tensor => unary('log', x);
export const sqrt = (x: Tensor): Tensor => unary('sqrt', x);
/** 1 / sqrt(x). */
export const rsqrt = (x: Tensor): Tensor => unary('rsqrt', x);
export const square = (x: Tensor): Tensor => unary('square', x);
/** 1 / x. */
export const reciprocal = (x: Tensor): Tensor => unary('reciprocal', x);
export const tanh = (x: Tensor): Tensor => unary('tanh', x);
export const sigmoid = (x: Tensor): Tensor => unary('sigmoid', x);
/** max(x, 0); its gradient at 0 is 0. */
export const relu = (x: Tensor): Tensor => unary('relu', x);

/**
 * x times the normal distribution's cumulative at x (Hendrycks and Gimpel, 2016).
 * @param options.approximate 'none' (erf, the default) or 'tanh' (GPT-2's).
 */
export function gelu(x: Tensor, options: { readonly approximate?: 'none' | 'tanh' } = {}): Tensor {
  return unary(options.approximate === 'tanh' ? 'geluTanh' : 'gelu', x);
}

/** a + b, broadcast. Mixed float dtypes give the wider: f32, or f32 for f16 with bf16. */
export const add = (a: Tensor, b: Tensor | number): Tensor =>
  typeof b === 'number' ? affine(a, 1, b) : binary('add', a, b);
/** a - b, broadcast. */
export const sub = (a: Tensor, b: Tensor | number): Tensor =>
  typeof b === 'number' ? affine(a, 1, -b) : binary('sub', a, b);
/** a * b, broadcast. */
export const mul = (a: Tensor, b: Tensor | number): Tensor =>
  typeof b === 'number' ? affine(a, b, 0) : binary('mul', a, b);
/** a / b, broadcast; floats. */
export const div = (a: Tensor, b: Tensor | number): Tensor =>
  typeof b === 'number' ? affine(a, 1 / b, 0) : binary('div', a, b);
/** The larger of each pair; where equal, the gradient is halved between them. */
export const maximum = (a: Tensor, b: Tensor): Tensor => binary('maximum', a, b);
/** The smaller of each pair; where equal, the gradient is halved between them. */
export const minimum = (a: Tensor, b: Tensor): Tensor => binary('minimum', a, b);

/** a to the power b, broadcast; floats. The gradient to b needs a > 0. */
export function pow(a: Tensor, b: Tensor | number): Tensor {
  const exponent = typeof b === 'number' ? a.device.full([1], b, { dtype: a.dtype }) : b;
  return binary('pow', a, exponent);
}

/** x * scale + shift, floats. */
export function affine(x: Tensor, scale: number, shift: number): Tensor {
  requireFloat('affine', x);
  const { device } = x;
  const out = device.empty(x.shape, { dtype: x.dtype });
  if (out.size > 0) device.backend.run('affine', { x: x.view(), out: out.view(), scale, shift });
  device.record({
    name: 'affine',
    inputs: [x],
    outputs: [out],
    saved: [],
    backward: ([dy]) => [scale === 1 ? dy : affine(dy!, scale, 0)],
  });
  return out;
}

function unary(kind: UnaryKind, x: Tensor): Tensor {
  requireFloat(kind, x);
  const { device } = x;
  const out = device.empty(x.shape, { dtype: x.dtype });
  if (out.size > 0) device.backend.run('unary', { kind, x: x.view(), out: out.view() });
  device.record({
    name: kind,
    inputs: [x],
    outputs: [out],
    saved: [x],
    backward: ([dy]) => {
      const dx = device.empty(x.shape, { dtype: x.dtype });
      if (dx.size > 0) {
        device.backend.run('unaryBackward', {
          kind,
          x: x.view(),
          dy: dy!.view(),
          out: dx.view(),
        });
      }
      return [dx];
    },
  });
  return out;
}

function binary(kind: BinaryKind, a: Tensor, b: Tensor): Tensor {
  const dtype = commonDType(kind, a, b);
  requireSameDevice(kind, a, b);
  const { device } = a;
  const shape = broadcastShapes(kind, a.shape, b.shape);
  const out = device.empty(shape, { dtype });
  if (out.size > 0) runBinary(kind, a, b, out);
  if (!isFloat(dtype)) return out;
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
  const isDense = isSameShape(a.shape, out.shape) && isSameShape(b.shape, out.shape);
  if (!isDense) requireBindable(kind, a, b, out);
  const [shape, aStrides, bStrides] = isDense
    ? [[out.size], [1], [1]]
    : collapse(out.shape, broadcastStrides(a.shape, out.shape), broadcastStrides(b.shape, out.shape));
  out.device.backend.run('binary', {
    kind,
    a: a.view(),
    b: b.view(),
    out: out.view(),
    shape,
    aStrides,
    bStrides,
  });
}

/** Merges neighbouring axes that both operands walk densely or not at all: fewer axes, same walk. */
function collapse(
  shape: Shape,
  aStrides: readonly number[],
  bStrides: readonly number[],
): [number[], number[], number[]] {
  const out: [number[], number[], number[]] = [[], [], []];
  shape.forEach((dim, i) => {
    if (dim === 1) return;
    const last = out[0].length - 1;
    const isMerged =
      last >= 0 &&
      out[1][last] === aStrides[i]! * dim &&
      out[2][last] === bStrides[i]! * dim;
    if (isMerged) {
      out[0][last]! *= dim;
      out[1][last] = aStrides[i]!;
      out[2][last] = bStrides[i]!;
    } else {
      out[0].push(dim);
      out[1].push(aStrides[i]!);
      out[2].push(bStrides[i]!);
    }
  });
  return out[0].length > 0 ? out : [[1], [0], [0]];
}

function savedBy(kind: BinaryKind, a: Tensor, b: Tensor): Tensor[] {
  if (kind === 'add' || kind === 'sub') return [];
  if (kind !== 'mul') return [a, b];
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
      return mul(dy, mul(b, pow(a, add(b, -1))));
    case 'maximum':
    case 'minimum':
      return mul(dy, selection(kind, a, b));
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
      return neg(div(mul(dy, a), square(b)));
    case 'pow':
      return mul(dy, mul(pow(a, b), log(a)));
    case 'maximum':
    case 'minimum':
      return mul(dy, selection(kind, b, a));
  }
}

/** 1 where `chosen` wins against `other`, 0.5 where equal, 0 elsewhere. */
function selection(kind: 'maximum' | 'minimum', chosen: Tensor, other: Tensor): Tensor {
  const lead = kind === 'maximum' ? sub(chosen, other) : sub(other, chosen);
  // sign(lead): lead / |lead|, with the zeros kept at zero by a tiny denominator.
  const sign = div(lead, maximum(abs(lead), lead.device.full([1], 1e-30)));
  return affine(sign, 0.5, 0.5);
}

/** The gradient of a broadcast operand: summed over the broadcast axes, in the operand's dtype. */
function fold(gradient: Tensor, operand: Tensor): Tensor {
  return cast(sumTo(gradient, operand.shape), operand.dtype);
}

function commonDType(op: string, a: Tensor, b: Tensor): DType {
  if (a.dtype === b.dtype) {
    if (!isFloat(a.dtype) && (op === 'div' || op === 'pow')) requireFloat(op, a);
    return a.dtype;
  }
  if (!isFloat(a.dtype) || !isFloat(b.dtype)) {
    throw new DTypeError(`${op}: expected two floats or one integer dtype, got ${a.dtype} and ${b.dtype}.`);
  }
  return 'f32';
}
