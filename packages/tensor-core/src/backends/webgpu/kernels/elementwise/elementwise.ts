// Functions of single elements: unary ones and their gradients, affine ones, and binary ones with
// broadcasting. An invocation handles several words, and a call moves 4 to 12 bytes per element.

import { type DType, isFloat } from '@shardweave/dtypes';
import type { BinaryKind, UnaryKind } from '../../../../kernel-calls/elementwise.js';
import type { KernelCalls } from '../../../../kernel-calls/kernel-calls.js';
import { ofKind } from '../../../../kind-table.js';
import type { View } from '../../../../view.js';
import {
  defineKernel,
  elementsPerWord,
  type Grid,
  type Kernel,
  linearGrid,
} from '../../kernel/kernel.js';
import { INTEGER_DIVIDE, mainHead } from '../../kernel/wgsl.js';
import { isSameView, type KernelContext } from '../../queue/context.js';
import { eachRange } from '../../queue/row-blocks.js';
import { SIN_COS } from './angles.js';
import { collapse, eachWalkBlock, stridedIndex, strideParams } from './strided.js';

export const ELEMENTWISE_SIZE = [64, 1, 1] as const;

/** The most words that an invocation handles. */
const MOST_WORDS = 4;
/** The workgroups that a device should get at least; below that, invocations handle fewer words. */
const MANY_GROUPS = 1024;

const GELU = `
const SQRT_2_OVER_PI = 0.7978845608028654;
// Complementary error function for z >= 0, fractional error below 1.2e-7 (Chebyshev fit, Press et
// al., Numerical Recipes, 6.2).
fn erfc(z: f32) -> f32 {
  let t = 1.0 / (1.0 + 0.5 * z);
  var p = 0.17087277;
  p = fma(p, t, -0.82215223);
  p = fma(p, t, 1.48851587);
  p = fma(p, t, -1.13520398);
  p = fma(p, t, 0.27886807);
  p = fma(p, t, -0.18628806);
  p = fma(p, t, 0.09678418);
  p = fma(p, t, 0.37409196);
  p = fma(p, t, 1.00002368);
  return t * exp(-z * z - 1.26551223 + t * p);
}
fn normal_cdf(x: f32) -> f32 {
  let tail = 0.5 * erfc(min(abs(x) * 0.7071067811865476, 10.0));
  return select(tail, 1.0 - tail, x > 0.0);
}
fn gelu_inner(x: f32) -> f32 { return SQRT_2_OVER_PI * (x + 0.044715 * x * x * x); }
`;

/**
 * WGSL of tanh and the logistic function. Those of drivers overflow for large arguments and lose
 * small ones to cancellation.
 */
const TANH_AND_SIGMOID = `
fn safe_tanh(x: f32) -> f32 {
  let s = x * x;
  let small = x * (1.0 + s * (-0.33333333 + s * (0.13333334 + s * -0.053968254)));
  let e = exp(2.0 * min(abs(x), 15.0));
  let large = 1.0 - 2.0 / (e + 1.0);
  let value = select(select(large, -large, x < 0.0), small, abs(x) < 0.2);
  return select(value, x, is_nan(x)); // min may have made a number of it
}
fn sigmoid(x: f32) -> f32 {
  let e = exp(-min(abs(x), 88.0));
  let value = select(1.0 / (1.0 + e), e / (1.0 + e), x < 0.0);
  return select(value, x, is_nan(x));
}
`;

/**
 * The WGSL expression of each kind at `x`. ACTIVATIONS, LOG and SIN_COS define the functions that
 * it calls; is_nan and exp_of, from wgsl.ts, are in every kernel.
 */
export const FUNCTIONS: Readonly<Record<UnaryKind, string>> = {
  neg: '-x',
  abs: 'abs(x)',
  exp: 'exp_of(x)',
  log: 'full_log(x)',
  sqrt: 'sqrt(x)',
  rsqrt: '1.0 / sqrt(x)',
  square: 'x * x',
  reciprocal: '1.0 / x',
  tanh: 'safe_tanh(x)',
  sigmoid: 'sigmoid(x)',
  sin: 'sin_of(x)',
  cos: 'cos_of(x)',
  relu: 'select(x, 0.0, x < 0.0 && !is_nan(x))',
  silu: 'silu(x)',
  gelu: 'x * normal_cdf(x)',
  geluTanh: '0.5 * x * (1.0 + safe_tanh(gelu_inner(x)))',
};

/**
 * The WGSL expression of each kind's derivative at `x`. ACTIVATIONS, SLOPES and SIN_COS define the
 * functions that it calls.
 */
export const DERIVATIVES: Readonly<Record<UnaryKind, string>> = {
  neg: '-1.0',
  abs: 'select(sign(x), x, is_nan(x))',
  exp: 'exp_of(x)',
  log: '1.0 / x',
  sqrt: '0.5 / sqrt(x)',
  rsqrt: '-0.5 / (x * sqrt(x))',
  square: '2.0 * x',
  reciprocal: '-1.0 / (x * x)',
  tanh: 'tanh_slope(x)',
  sigmoid: 'sigmoid(x) * sigmoid(-x)',
  sin: 'cos_of(x)',
  cos: '-sin_of(x)',
  relu: 'select(0.0, 1.0, x > 0.0 && !is_nan(x))',
  silu: 'silu_slope(x)',
  gelu: 'gelu_slope(x)',
  geluTanh: 'gelu_tanh_slope(x)',
};

/** Further functions that DERIVATIVES call. A kernel puts ACTIVATIONS in front of them. */
export const SLOPES = `fn tanh_slope(x: f32) -> f32 {
  let e = exp(-2.0 * min(abs(x), 40.0));
  let d = 1.0 + e;
  return select(4.0 * e / (d * d), x, is_nan(x));
}
// At an infinity the formula multiplies it by 0, which is NaN on the reference. A driver may make
// a number of that, so NaN is chosen here and in the slopes of gelu.
fn silu_slope(x: f32) -> f32 {
  let slope = sigmoid(x) * (1.0 + x * sigmoid(-x));
  return select(slope, nan(), is_infinite(x));
}
fn gelu_slope(x: f32) -> f32 {
  let slope = normal_cdf(x) + x * exp(-0.5 * min(x * x, 200.0)) * 0.3989422804014327;
  return select(slope, nan(), is_infinite(x));
}
fn gelu_tanh_slope(x: f32) -> f32 {
  let t = gelu_inner(x);
  let inner = SQRT_2_OVER_PI * (1.0 + 0.134145 * x * x);
  let slope = 0.5 * (1.0 + safe_tanh(t)) + select(0.5 * x * tanh_slope(t) * inner, 0.0, abs(x) > 1e3);
  return select(slope, nan(), is_infinite(x));
}
`;

/** Functions that the activations among FUNCTIONS call, and that SLOPES calls. */
export const ACTIVATIONS = `${TANH_AND_SIGMOID}${GELU}
fn silu(x: f32) -> f32 { return select(x * sigmoid(x), nan(), is_infinite(x) && x < 0.0); }
`;

/**
 * WGSL of a log with NaN, 0 and infinity spelled out, because drivers disagree about them. A
 * subnormal number is multiplied by 2^25 first, where the driver has not made 0 of it.
 */
const LOG = `fn full_log(x: f32) -> f32 {
  if (is_nan(x) || x < 0.0) { return nan(); }
  if (x == 0.0) { return -inf(); }
  if (x < 1.1754943508222875e-38) { return log(x * 33554432.0) - 17.328679513998633; }
  return select(log(x), x, is_infinite(x));
}
`;

export function unary(ctx: KernelContext, { kind, x, out }: KernelCalls['unary']): void {
  map(ctx, {
    name: `unary ${kind}`,
    inputs: { x },
    out,
    helpers: ACTIVATIONS + LOG + SIN_COS,
    value: `let x = load_x(i); return ${ofKind('unary', FUNCTIONS, kind)};`,
  });
}

export function unaryBackward(ctx: KernelContext, call: KernelCalls['unaryBackward']): void {
  const { kind, x, dy, out } = call;
  map(ctx, {
    name: `unaryBackward ${kind}`,
    inputs: { x, dy },
    out,
    helpers: ACTIVATIONS + SLOPES + SIN_COS,
    value: `let x = load_x(i); return load_dy(i) * (${ofKind('unaryBackward', DERIVATIVES, kind)});`,
  });
}

export function affine(ctx: KernelContext, call: KernelCalls['affine']): void {
  const { x, out, scale, shift } = call;
  map(ctx, {
    name: 'affine',
    inputs: { x },
    out,
    params: { scale, shift },
    value: 'return fma(load_x(i), P.scale, P.shift);',
  });
}

export function binary(ctx: KernelContext, call: KernelCalls['binary']): void {
  const { kind, a, b, out, shape, aStrides, bStrides } = call;
  const dims = collapse(shape, [aStrides, bStrides]);
  const isDense = dims.shape.length === 1 && dims.strides.every((s) => s[0] === 1);
  const expression = combine(kind, out.dtype);
  if (isDense || out.size === 1) {
    map(ctx, {
      name: `binary ${kind}`,
      inputs: { a, b },
      out,
      helpers: PAIRS,
      value: `let a = load_a(i); let b = load_b(i); return ${expression};`,
    });
    return;
  }
  const whole = { op: kind, walk: dims, operands: [a, b], out };
  eachWalkBlock(ctx, whole, ({ walk, operands, out: outPart }) => {
    const [aPart, bPart] = operands as [View, View];
    const rank = walk.shape.length;
    map(ctx, {
      name: `binary ${kind} rank ${rank}`,
      inputs: { a: aPart, b: bPart },
      out: outPart,
      params: {},
      integers: strideParams(walk, ['a', 'b']),
      isWhole: true,
      helpers: `${PAIRS}\n${INTEGER_DIVIDE}\n${stridedIndex(rank, ['a', 'b'])}`,
      value: `let at = strided(i); let a = load_a(at.a); let b = load_b(at.b); return ${expression};`,
    });
  });
}

const PAIRS = `fn maximum(a: f32, b: f32) -> f32 { return select(select(b, a, a > b), nan(), is_nan(a) || is_nan(b)); }
fn minimum(a: f32, b: f32) -> f32 { return select(select(b, a, a < b), nan(), is_nan(a) || is_nan(b)); }
fn power(a: f32, b: f32) -> f32 {
  if (b == 0.0 || bitcast<u32>(a) == 0x3f800000u) { return 1.0; }
  if (is_nan(a) || is_nan(b)) { return nan(); }
  if (is_infinite(b)) {
    if (abs(a) == 1.0) { return 1.0; }
    return select(0.0, inf(), (abs(a) > 1.0) == (b > 0.0));
  }
  if (b == 2.0) { return a * a; }
  let is_whole = floor(b) == b;
  let half = b * 0.5;
  let is_odd = is_whole && floor(half) != half;
  let is_negative = (bitcast<u32>(a) >> 31u) == 1u;
  var r = select(0.0, inf(), is_infinite(a) == (b > 0.0));
  if (a != 0.0 && !is_infinite(a)) { // WGSL leaves these open
    r = pow(abs(a), b);
    if (is_negative && !is_whole) { return nan(); }
  }
  return select(r, -r, is_negative && is_odd);
}
`;

/** The WGSL expressions of integers, which have no div and no pow. */
const INTEGER_PAIRS = {
  add: 'a + b',
  sub: 'a - b',
  mul: 'a * b',
  maximum: 'max(a, b)',
  minimum: 'min(a, b)',
};

const FLOAT_PAIRS: Readonly<Record<BinaryKind, string>> = {
  ...INTEGER_PAIRS,
  div: 'a / b',
  maximum: 'maximum(a, b)',
  minimum: 'minimum(a, b)',
  pow: 'power(a, b)',
};

function combine(kind: BinaryKind, dtype: DType): string {
  return ofKind('binary', isFloat(dtype) ? FLOAT_PAIRS : INTEGER_PAIRS, kind);
}

/**
 * A kernel that computes each element by itself. The WGSL statements `value` return out[i] from
 * `load_<input>(i)` and from parameters: `return fma(load_x(i), P.scale, P.shift);`.
 */
export interface Mapping {
  /** The function's name, unique up to dtypes and aliasing; see keyText. */
  readonly name: string;
  /** A text that makes the kernel's key unique where `name` alone does not. */
  readonly keyText?: string;
  readonly inputs: Readonly<Record<string, View>>;
  readonly out: View;
  /** The values of f32 parameters. */
  readonly params?: Readonly<Record<string, number>>;
  /** The values of u32 parameters. */
  readonly integers?: Readonly<Record<string, number>>;
  /** Whether element i needs more of an input than its element i, so that no range can be cut. */
  readonly isWhole?: boolean;
  readonly helpers?: string;
  readonly value: string;
}

/** Computes out[i] = value(i) for all elements, in ranges that bind at once. */
export function map(ctx: KernelContext, mapping: Mapping): void {
  const { inputs, out, params = {}, integers = {} } = mapping;
  const inPlace = Object.keys(inputs).filter((name) => isSameView(inputs[name]!, out));
  const separate = Object.keys(inputs).filter((name) => !inPlace.includes(name));
  const label = [
    mapping.name,
    out.dtype,
    ...separate.map((name) => `${name}:${inputs[name]!.dtype}`),
    ...inPlace.map((name) => `${name}=out`),
  ].join(' ');
  const key = mapping.keyText === undefined ? label : `${label} ${mapping.keyText}`;
  const compiled = ctx.kernel(key, () => mapKernel(label, mapping, { separate, inPlace }));
  const views = [...separate.map((name) => inputs[name]!), out];
  const dispatch = (bound: readonly View[], size: number) => {
    const words = Math.ceil(size / elementsPerWord(out.dtype));
    const { grid, perLane } = elementwiseGrid(ctx, words);
    ctx.dispatch(compiled, {
      params: { ...params, ...integers, size, words, per_lane: perLane },
      views: bound,
      grid,
    });
  };
  if (mapping.isWhole === true) {
    dispatch(views, out.size);
    return;
  }
  eachRange(ctx, views, mapping.name, (parts, _, length) => dispatch(parts, length));
}

function mapKernel(
  label: string,
  mapping: Mapping,
  { separate, inPlace }: { separate: readonly string[]; inPlace: readonly string[] },
): Kernel {
  const { inputs, out, params = {}, integers = {}, helpers = '', value } = mapping;
  const type = out.dtype === 'i32' || out.dtype === 'u32' ? out.dtype : 'f32';
  return defineKernel({
    label,
    bindings: [
      ...separate.map((name) => ({ name, type: inputs[name]!.dtype, access: 'read' as const })),
      { name: 'out', type: out.dtype, access: 'read_write' },
    ],
    aliases: Object.fromEntries(inPlace.map((name) => [name, 'out'])),
    params: {
      ...Object.fromEntries(Object.keys(params).map((name) => [name, 'f32' as const])),
      ...Object.fromEntries(Object.keys(integers).map((name) => [name, 'u32' as const])),
      size: 'u32',
      words: 'u32',
      per_lane: 'u32',
    },
    workgroupSize: ELEMENTWISE_SIZE,
    body: `${helpers}
fn value(i: u32) -> ${type} { ${value} }
${elementwiseMain(storeWord(out.dtype))}`,
  });
}

/** Returns WGSL that stores word `u` of `out`, which holds one or two elements of `value(i)`. */
export function storeWord(dtype: DType): string {
  return elementsPerWord(dtype) === 2
    ? `let i = 2u * u;
      if (i + 1u < P.size) { store2_out(i, value(i), value(i + 1u)); } else { store1_out(i, value(i)); }`
    : 'store_out(u, value(u));';
}

/** Returns a `main` that runs `word` for each u < P.words. A workgroup takes a contiguous run. */
export function elementwiseMain(word: string): string {
  return `${mainHead(ELEMENTWISE_SIZE)}
  let first = group * 64u * P.per_lane + lane;
  for (var j = 0u; j < P.per_lane; j++) {
    let u = first + j * 64u;
    if (u < P.words) { ${word} }
  }
}`;
}

/** Returns the workgroups for a number of words, and how many words each invocation handles. */
export function elementwiseGrid(
  _ctx: KernelContext,
  words: number,
): { grid: Grid; perLane: number } {
  const perGroup = ELEMENTWISE_SIZE[0];
  let perLane = MOST_WORDS;
  while (perLane > 1 && words < perGroup * perLane * MANY_GROUPS) {
    perLane /= 2;
  }
  return { grid: linearGrid(Math.ceil(words / (perGroup * perLane))), perLane };
}
