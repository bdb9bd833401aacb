// Op cases of functions of single elements, of pairs with broadcasting, of affine and of cast.

import type { DType } from '@shardweave/dtypes';
import type { BinaryKind, UnaryKind } from '../../kernel-calls/elementwise.js';
import { cast } from '../../ops/cast.js';
import * as ops from '../../ops/elementwise.js';
import type { Tensor } from '../../tensor.js';
import { type OpCase, type OpInput, opCase } from '../kit/op-check.js';
import type { FloatDType } from '../kit/op-tolerance.js';
import { FLOATS } from '../kit/sizes.js';
import { geluErf, geluTanh, mapTwin, pairTwin, siluOf } from '../twins/elementwise.js';

type Unary = readonly [
  op: (x: Tensor) => Tensor,
  twin: (x: number) => number,
  range?: OpInput['values'],
];

/** Values away from a pole at 0, and from where a function is undefined. */
const POSITIVE = { low: 0.5, high: 2 };
/**
 * Values on both sides of a kink at 0, but not at it, where a central difference would be the mean
 * of both slopes.
 */
const AROUND_ZERO = [-1.5, -0.25, 0.25, 1.5, 2, -3, 0.125];
const UNARY: Readonly<Record<UnaryKind, Unary>> = {
  neg: [ops.neg, (x) => -x],
  abs: [ops.abs, Math.abs, AROUND_ZERO],
  exp: [ops.exp, Math.exp],
  log: [ops.log, Math.log, POSITIVE],
  sqrt: [ops.sqrt, Math.sqrt, POSITIVE],
  rsqrt: [ops.rsqrt, (x) => 1 / Math.sqrt(x), POSITIVE],
  square: [ops.square, (x) => x * x],
  reciprocal: [ops.reciprocal, (x) => 1 / x, POSITIVE],
  tanh: [ops.tanh, Math.tanh, { low: -3, high: 3 }],
  sigmoid: [ops.sigmoid, (x) => 1 / (1 + Math.exp(-x)), { low: -6, high: 6 }],
  sin: [ops.sin, Math.sin, { low: -6, high: 6 }],
  cos: [ops.cos, Math.cos, { low: -6, high: 6 }],
  silu: [ops.silu, siluOf, { low: -6, high: 6 }],
  relu: [ops.relu, (x) => Math.max(0, x), AROUND_ZERO],
  gelu: [(x) => ops.gelu(x), geluErf, { low: -3, high: 3 }],
  geluTanh: [(x) => ops.gelu(x, { approximate: 'tanh' }), geluTanh, { low: -3, high: 3 }],
};
const WITH_NUMBERS: Readonly<Record<string, Unary>> = {
  affine: [(x) => ops.affine(x, -1.5, 0.25), (x) => -1.5 * x + 0.25],
  'add a number': [(x) => ops.add(x, 0.5), (x) => x + 0.5],
  'subtract a number': [(x) => ops.sub(x, 0.5), (x) => x - 0.5],
  'multiply by a number': [(x) => ops.mul(x, -3), (x) => -3 * x],
  'divide by a number': [(x) => ops.div(x, 3), (x) => x / 3],
  'square by pow': [(x) => ops.pow(x, 2), (x) => x * x],
  'cube root by pow': [(x) => ops.pow(x, 1 / 3), Math.cbrt, POSITIVE],
};

type Binary = readonly [
  op: (a: Tensor, b: Tensor) => Tensor,
  twin: (a: number, b: number) => number,
  a?: OpInput['values'],
  b?: OpInput['values'],
];

const BINARY: Readonly<Record<BinaryKind, Binary>> = {
  add: [ops.add, (a, b) => a + b],
  sub: [ops.sub, (a, b) => a - b],
  mul: [ops.mul, (a, b) => a * b],
  div: [ops.div, (a, b) => a / b, undefined, POSITIVE],
  pow: [ops.pow, (a, b) => a ** b, POSITIVE],
  maximum: [ops.maximum, Math.max],
  minimum: [ops.minimum, Math.min],
};

const SHAPES: readonly (readonly [readonly number[], readonly number[]])[] = [
  [
    [3, 1, 5],
    [4, 1],
  ],
  [[65], [65]],
  [[], [7]],
  [[], []],
  [[2, 3], [1]],
  [
    [1, 63],
    [3, 1],
  ],
];
/** Shapes with more axes than kernels walk before neighbors are merged. */
const DEEP: (typeof SHAPES)[number] = [
  [2, 3, 1, 2, 1, 3, 1],
  [1, 1, 1, 2, 2, 3, 1],
];
const MIXED = [
  ['f32', 'f16', 'f32'],
  ['bf16', 'f32', 'f32'],
  ['f16', 'bf16', 'f32'],
] as const;

export function elementwiseOpCases(): OpCase[] {
  return [...unaryCases(), ...binaryCases(), ...tieCases(), ...integerCases(), ...castCases()];
}

function unaryCases(): OpCase[] {
  return Object.entries({ ...UNARY, ...WITH_NUMBERS }).flatMap(([name, [op, twin, values]]) =>
    FLOATS.flatMap((dtype) => {
      const shapes = Array.isArray(values) ? [[7]] : dtype === 'f32' ? [[65], []] : [[3, 7]];
      return shapes.map((shape) =>
        opCase(`${name} ${dtype} [${shape.join(', ')}]`, {
          dtype,
          inputs: [{ shape, ...(values === undefined ? {} : { values }) }],
          op: ([x]) => op(x!),
          twin: ([x]) => mapTwin(x!, twin),
        }),
      );
    }),
  );
}

function binaryCases(): OpCase[] {
  return Object.entries(BINARY).flatMap(([name, binary]) => [
    ...SHAPES.map((shapes) => pairCase(name, binary, shapes, ['f32', 'f32', 'f32'])),
    pairCase(name, binary, SHAPES[0]!, ['f16', 'f16', 'f16']),
    pairCase(name, binary, SHAPES[0]!, ['bf16', 'bf16', 'bf16']),
    ...(name === 'add' || name === 'maximum'
      ? [pairCase(name, binary, DEEP, ['f32', 'f32', 'f32'])]
      : []),
    ...(name === 'minimum'
      ? []
      : MIXED.map((dtypes) => pairCase(name, binary, [[3, 7], [7]], dtypes))),
  ]);
}

function pairCase(
  name: string,
  [op, twin, aValues, bValues]: Binary,
  [aShape, bShape]: (typeof SHAPES)[number],
  [aDType, bDType, dtype]: readonly [FloatDType, FloatDType, FloatDType],
): OpCase {
  const text = `${aDType} [${aShape.join(', ')}] with ${bDType} [${bShape.join(', ')}]`;
  return opCase(`${name} ${text}`, {
    dtype,
    inputs: [
      { shape: aShape, dtype: aDType, ...(aValues === undefined ? {} : { values: aValues }) },
      { shape: bShape, dtype: bDType, ...(bValues === undefined ? {} : { values: bValues }) },
    ],
    op: ([a, b]) => op(a!, b!),
    twin: ([a, b]) => pairTwin(a!, b!, twin),
    roundings: 2, // the gradient of a broadcast operand adds rounded products
  });
}

/**
 * Takes ties, where the central difference is the mean of both sides: the half that ops promise.
 */
function tieCases(): OpCase[] {
  return (['maximum', 'minimum'] as const).flatMap((kind) =>
    FLOATS.map((dtype) =>
      opCase(`${kind} ${dtype} with ties and far values`, {
        dtype,
        inputs: [
          { shape: [7], values: [1, 2, -3, 0, -60000, 0.5, 60000] },
          { shape: [7], values: [1, 1, -3, 0, 60000, 0.25, -60000] },
        ],
        op: ([a, b]) => (kind === 'maximum' ? ops.maximum(a!, b!) : ops.minimum(a!, b!)),
        twin: ([a, b]) => pairTwin(a!, b!, kind === 'maximum' ? Math.max : Math.min),
      }),
    ),
  );
}

function integerCases(): OpCase[] {
  const big = 2 ** 30;
  return (['i32', 'u32'] as const).map((dtype) =>
    opCase(`integer arithmetic wraps ${dtype}`, {
      dtype: 'f32',
      outDType: dtype,
      inputs: [
        { shape: [2, 2], dtype, values: [3, big, 7, 2 * big - 128] },
        { shape: [2], dtype, values: [5, big] },
      ],
      op: ([a, b]) => [
        ops.add(a!, b!),
        ops.sub(a!, b!),
        ops.mul(a!, b!),
        ops.maximum(a!, b!),
        ops.minimum(a!, b!),
      ],
      twin: ([a, b]) => {
        const wrap = (x: bigint) =>
          Number(dtype === 'i32' ? BigInt.asIntN(32, x) : BigInt.asUintN(32, x));
        const exact = (f: (a: bigint, b: bigint) => bigint) =>
          pairTwin(a!, b!, (x, y) => wrap(f(BigInt(x), BigInt(y))));
        return [
          exact((x, y) => x + y),
          exact((x, y) => x - y),
          exact((x, y) => x * y),
          pairTwin(a!, b!, Math.max),
          pairTwin(a!, b!, Math.min),
        ];
      },
    }),
  );
}

function castCases(): OpCase[] {
  const floats = FLOATS.flatMap((from) =>
    FLOATS.map((to) =>
      opCase(`cast ${from} to ${to}`, {
        dtype: from,
        outDType: to,
        inputs: [{ shape: [7, 9] }],
        op: ([x]) => cast(x!, to, { copy: true }),
        twin: ([x]) => x!,
        roundings: from === 'f16' && to === 'bf16' ? 8 : 1, // the gradient is rounded as bf16
      }),
    ),
  );
  const integers = (['i32', 'u32'] as const).flatMap((dtype) => [
    castCase('f32', dtype, [0, 1.5, 2.99, 1000, 7, 3, 2]),
    castCase(dtype, 'f32', [0, 1, 2, 1000, 7, 2 ** 20, 5]),
    castCase(dtype, 'f16', [0, 1, 2, 1000, 7, 2047, 5]),
  ]);
  return [...floats, ...integers];
}

function castCase(from: DType, to: DType, values: readonly number[]): OpCase {
  return opCase(`cast ${from} to ${to}`, {
    dtype: 'f32',
    outDType: to,
    inputs: [{ shape: [7], dtype: from, values }],
    op: ([x]) => cast(x!, to),
    twin: ([x]) => mapTwin(x!, Math.trunc),
  });
}
