// unary, unaryBackward, affine and binary.

import type { DType } from '@shardweave/dtypes';
import type { BinaryKind, UnaryKind } from '../../kernel-calls/elementwise.js';
import type { View } from '../../view.js';
import { type ConformanceCase, twinCase } from '../conformance-case.js';
import { FLOATS, INPUT_OFFSETS, OUTPUT_OFFSETS, SIZES } from '../sizes.js';
import type { Twin } from '../twin.js';

/** Ranges where the function and its slope are defined and of moderate size. */
const UNARY_RANGES: Readonly<Record<UnaryKind, readonly [low: number, high: number]>> = {
  neg: [-3, 3],
  abs: [-3, 3],
  exp: [-5, 3],
  log: [0.25, 4],
  sqrt: [0.25, 4],
  rsqrt: [0.25, 4],
  square: [-3, 3],
  reciprocal: [0.25, 4],
  tanh: [-4, 4],
  sigmoid: [-6, 6],
  sin: [-20, 20],
  cos: [-20, 20],
  relu: [-3, 3],
  silu: [-6, 6],
  gelu: [-5, 5],
  geluTanh: [-5, 5],
};
export const UNARY_KINDS = Object.keys(UNARY_RANGES) as UnaryKind[];
const MIXES: readonly (readonly [from: DType, to: DType])[] = [
  ['f16', 'f32'],
  ['f32', 'bf16'],
  ['bf16', 'f16'],
];
/** Where a naive tanh or sigmoid overflows to NaN. */
const FAR = [-1e4, -100, -50, -20, -10, -1e-3, -0, 0, 1e-3, 10, 20, 50, 100, 1e4];

export function elementwiseCases(): ConformanceCase[] {
  return [
    ...UNARY_KINDS.flatMap((kind) => FLOATS.map((dtype) => unaryCase(kind, dtype, dtype))),
    ...MIXES.map(([from, to]) => unaryCase('gelu', from, to)),
    ...(['tanh', 'sigmoid', 'silu', 'gelu', 'geluTanh'] as const).map(saturationCase),
    farAnglesCase(),
    unaryInPlaceCase(),
    ...FLOATS.map((dtype) => affineCase(dtype, dtype)),
    ...MIXES.map(([from, to]) => affineCase(from, to)),
    ...(['add', 'sub', 'mul', 'div', 'maximum', 'minimum', 'pow'] as const).map(binaryCase),
    ...binaryMixCases(),
    ...FLOATS.map(broadcastCase),
    binaryInPlaceCase(),
    sharedInputCase(),
    integerCase('i32'),
    integerCase('u32'),
  ];
}

function unaryCase(kind: UnaryKind, from: DType, to: DType): ConformanceCase {
  return twinCase(`unary ${kind} ${from} to ${to}, and backward`, 'transcendental', (twin) => {
    const [low, high] = UNARY_RANGES[kind];
    SIZES.forEach((size, i) => {
      const x = twin.floats(size, from, { low, high, offset: INPUT_OFFSETS[i]! });
      const dy = twin.floats(size, to, { offset: INPUT_OFFSETS[4 - i]! });
      const out = twin.output(size, to, { offset: OUTPUT_OFFSETS[i]! });
      const dx = twin.output(size, from, { offset: OUTPUT_OFFSETS[4 - i]! });
      twin.run('unary', { kind, x, out });
      twin.run('unaryBackward', { kind, x, dy, out: dx });
    });
  });
}

function saturationCase(kind: UnaryKind): ConformanceCase {
  return twinCase(`unary ${kind} far from zero`, 'transcendental', (twin) => {
    const x = twin.values(FAR, 'f32');
    const dy = twin.floats(FAR.length, 'f32', { low: 0.5 });
    twin.run('unary', { kind, x, out: twin.output(FAR.length, 'f32') });
    twin.run('unaryBackward', { kind, x, dy, out: twin.output(FAR.length, 'f32') });
  });
}

/** Near multiples of a quarter turn and where 24 bits of the angle are all behind the point. */
function farAnglesCase(): ConformanceCase {
  return twinCase('unary sin and cos of large angles', 'transcendental', (twin) => {
    const angles = [0.78, 0.7854, Math.PI / 2, Math.PI, 2 * Math.PI, 355, 8192.5, 131072, 16777216];
    angles.push(1e5, 33554432.5, 1e10, 2 ** 40, 1e20, 3e38, 2 ** -20, 1e-30, 0);
    const x = twin.values([...angles, ...angles.map((angle) => -angle)], 'f32');
    for (const kind of ['sin', 'cos'] as const) {
      const size = 2 * angles.length;
      twin.run('unary', { kind, x, out: twin.output(size, 'f32') });
      const dy = twin.floats(size, 'f32');
      twin.run('unaryBackward', { kind, x, dy, out: twin.output(size, 'f32') });
    }
  });
}

function unaryInPlaceCase(): ConformanceCase {
  return twinCase('unary, unaryBackward and affine in place', 'transcendental', (twin) => {
    for (const dtype of FLOATS) {
      const x = twin.floats(65, dtype, { isWritten: true, offset: 2 });
      twin.run('unary', { kind: 'tanh', x, out: x });
      twin.run('affine', { x, out: x, scale: 0.5, shift: 0.25 });
      const saved = twin.floats(63, dtype);
      const dy = twin.floats(63, dtype, { isWritten: true });
      twin.run('unaryBackward', { kind: 'sigmoid', x: saved, dy, out: dy });
    }
  });
}

function affineCase(from: DType, to: DType): ConformanceCase {
  return twinCase(`affine ${from} to ${to}`, 'arithmetic', (twin) => {
    SIZES.forEach((size, i) => {
      const x = twin.floats(size, from, { offset: INPUT_OFFSETS[i]! });
      const out = twin.output(size, to, { offset: OUTPUT_OFFSETS[4 - i]! });
      twin.run('affine', { x, out, scale: -1.7, shift: 0.3 });
    });
  });
}

function binaryCase(kind: BinaryKind): ConformanceCase {
  return twinCase(`binary ${kind} dense`, 'transcendental', (twin) => {
    for (const dtype of FLOATS) {
      SIZES.forEach((size, i) => {
        const a = twin.floats(size, dtype, { low: 0.25, high: 2, offset: INPUT_OFFSETS[i]! });
        const b = twin.floats(size, dtype, { low: 0.5, high: 3, offset: INPUT_OFFSETS[4 - i]! });
        const out = twin.output(size, dtype, { offset: OUTPUT_OFFSETS[i]! });
        runDense(twin, kind, { a, b, out, size });
      });
    }
  });
}

function binaryMixCases(): ConformanceCase[] {
  const mixes = [
    ['f32', 'f16', 'f32'],
    ['f16', 'f32', 'bf16'],
    ['bf16', 'f16', 'f32'],
    ['f32', 'f32', 'f16'],
  ] as const;
  return mixes.map(([aType, bType, outType]) =>
    twinCase(`binary add ${aType} and ${bType} to ${outType}`, 'arithmetic', (twin) => {
      for (const size of SIZES) {
        const a = twin.floats(size, aType, { offset: 1 });
        const b = twin.floats(size, bType, { offset: 3 });
        const out = twin.output(size, outType);
        runDense(twin, 'add', { a, b, out, size });
      }
    }),
  );
}

function broadcastCase(dtype: DType): ConformanceCase {
  return twinCase(`binary ${dtype} broadcast through strides`, 'arithmetic', (twin) => {
    const run = (
      kind: BinaryKind,
      shape: readonly number[],
      aStrides: readonly number[],
      bStrides: readonly number[],
    ) => {
      const operand = (strides: readonly number[], offset: number) =>
        twin.floats(extentOf(shape, strides), dtype, { offset });
      const size = shape.reduce((product, dim) => product * dim, 1);
      const call = { kind, shape, aStrides, bStrides };
      const out = twin.output(size, dtype, { offset: 2 });
      twin.run('binary', { ...call, a: operand(aStrides, 1), b: operand(bStrides, 3), out });
    };
    run('add', [9, 7], [7, 1], [0, 1]); // a row
    run('mul', [9, 7], [7, 1], [1, 0]); // a column
    run('sub', [9, 7], [0, 0], [7, 1]); // a scalar, first
    run('sub', [65], [1], [0]);
    run('maximum', [9, 7], [1, 9], [7, 1]); // a transposed
    run('add', [2, 3, 1, 2, 2, 5], [30, 10, 10, 0, 5, 1], [0, 10, 0, 5, 0, 1]); // rank 6
    run('mul', [3, 4, 5, 7], [140, 35, 7, 1], [0, 7, 0, 1]);
    run('add', [1], [0], [0]);
  });
}

function binaryInPlaceCase(): ConformanceCase {
  return twinCase('binary in place over a and over b', 'arithmetic', (twin) => {
    for (const dtype of FLOATS) {
      const a = twin.floats(63, dtype, { isWritten: true });
      const row = twin.floats(7, dtype, { offset: 1 });
      const rows = { shape: [9, 7], aStrides: [7, 1], bStrides: [0, 1] };
      twin.run('binary', { kind: 'add', a, b: row, out: a, ...rows });
      const b = twin.floats(65, dtype, { isWritten: true });
      const other = twin.floats(65, dtype, { offset: 3 });
      runDense(twin, 'sub', { a: other, b, out: b, size: 65 });
    }
  });
}

/** Flat parameters: several operands are views of one buffer, at any elements. */
function sharedInputCase(): ConformanceCase {
  return twinCase('binary of two views of one buffer', 'arithmetic', (twin) => {
    for (const dtype of FLOATS) {
      const flat = twin.floats(300, dtype);
      const out = twin.output(65, dtype);
      const call = { a: twin.slice(flat, 3, 65), b: twin.slice(flat, 40, 65), out, size: 65 };
      runDense(twin, 'mul', call);
      const all = { a: flat, b: flat, out: twin.output(300, dtype), size: 300 };
      runDense(twin, 'mul', all);
    }
  });
}

function integerCase(dtype: 'i32' | 'u32'): ConformanceCase {
  return twinCase(`binary ${dtype} wraps`, 'exact', (twin) => {
    for (const kind of ['add', 'sub', 'mul', 'maximum', 'minimum'] as const) {
      for (const size of [1, 65]) {
        const a = twin.anyBits(size, dtype, { offset: 1 });
        const b = twin.anyBits(size, dtype, { offset: 2 });
        runDense(twin, kind, { a, b, out: twin.output(size, dtype, { offset: 3 }), size });
      }
    }
  });
}

function runDense(
  twin: Twin,
  kind: BinaryKind,
  { a, b, out, size }: { a: View; b: View; out: View; size: number },
): void {
  twin.run('binary', { kind, a, b, out, shape: [size], aStrides: [1], bStrides: [1] });
}

/** Elements that a walk over `shape` with `strides` reaches. */
function extentOf(shape: readonly number[], strides: readonly number[]): number {
  return shape.reduce((last, dim, axis) => last + (dim - 1) * strides[axis]!, 1);
}
