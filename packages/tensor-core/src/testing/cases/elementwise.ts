// Cases of unary, unaryBackward, affine and binary.

import type { DType } from '@shardweave/dtypes';
import type { BinaryKind, UnaryKind } from '../../kernel-calls/elementwise.js';
import type { View } from '../../view.js';
import type { CallRecorder } from '../kit/call-recorder.js';
import { type ConformanceCase, recordedCase } from '../kit/conformance-case.js';
import { FLOATS, INPUT_OFFSETS, OUTPUT_OFFSETS, SIZES } from '../kit/sizes.js';

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
/** Arguments where a naive tanh or sigmoid overflows to NaN, and small ones. */
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
  return recordedCase(`unary ${kind} ${from} to ${to}, and backward`, 'transcendental', (calls) => {
    const [low, high] = UNARY_RANGES[kind];
    SIZES.forEach((size, i) => {
      const x = calls.floats(size, from, { low, high, offset: INPUT_OFFSETS[i]! });
      const dy = calls.floats(size, to, { offset: INPUT_OFFSETS[4 - i]! });
      const out = calls.output(size, to, { offset: OUTPUT_OFFSETS[i]! });
      const dx = calls.output(size, from, { offset: OUTPUT_OFFSETS[4 - i]! });
      calls.run('unary', { kind, x, out });
      calls.run('unaryBackward', { kind, x, dy, out: dx });
    });
  });
}

function saturationCase(kind: UnaryKind): ConformanceCase {
  return recordedCase(`unary ${kind} far from zero`, 'transcendental', (calls) => {
    const x = calls.values(FAR, 'f32');
    const dy = calls.floats(FAR.length, 'f32', { low: 0.5 });
    calls.run('unary', { kind, x, out: calls.output(FAR.length, 'f32') });
    calls.run('unaryBackward', { kind, x, dy, out: calls.output(FAR.length, 'f32') });
  });
}

/**
 * Takes angles near multiples of a quarter turn, and so large that an f32 has no fraction there.
 */
function farAnglesCase(): ConformanceCase {
  return recordedCase('unary sin and cos of large angles', 'transcendental', (calls) => {
    const angles = [0.78, 0.7854, Math.PI / 2, Math.PI, 2 * Math.PI, 355, 8192.5, 131072, 16777216];
    angles.push(1e5, 33554432.5, 1e10, 2 ** 40, 1e20, 3e38, 2 ** -20, 1e-30, 0);
    const x = calls.values([...angles, ...angles.map((angle) => -angle)], 'f32');
    for (const kind of ['sin', 'cos'] as const) {
      const size = 2 * angles.length;
      calls.run('unary', { kind, x, out: calls.output(size, 'f32') });
      const dy = calls.floats(size, 'f32');
      calls.run('unaryBackward', { kind, x, dy, out: calls.output(size, 'f32') });
    }
  });
}

function unaryInPlaceCase(): ConformanceCase {
  return recordedCase('unary, unaryBackward and affine in place', 'transcendental', (calls) => {
    for (const dtype of FLOATS) {
      const x = calls.floats(65, dtype, { isWritten: true, offset: 2 });
      calls.run('unary', { kind: 'tanh', x, out: x });
      calls.run('affine', { x, out: x, scale: 0.5, shift: 0.25 });
      const saved = calls.floats(63, dtype);
      const dy = calls.floats(63, dtype, { isWritten: true });
      calls.run('unaryBackward', { kind: 'sigmoid', x: saved, dy, out: dy });
    }
  });
}

function affineCase(from: DType, to: DType): ConformanceCase {
  return recordedCase(`affine ${from} to ${to}`, 'arithmetic', (calls) => {
    SIZES.forEach((size, i) => {
      const x = calls.floats(size, from, { offset: INPUT_OFFSETS[i]! });
      const out = calls.output(size, to, { offset: OUTPUT_OFFSETS[4 - i]! });
      calls.run('affine', { x, out, scale: -1.7, shift: 0.3 });
    });
  });
}

function binaryCase(kind: BinaryKind): ConformanceCase {
  return recordedCase(`binary ${kind} dense`, 'transcendental', (calls) => {
    for (const dtype of FLOATS) {
      SIZES.forEach((size, i) => {
        const a = calls.floats(size, dtype, { low: 0.25, high: 2, offset: INPUT_OFFSETS[i]! });
        const b = calls.floats(size, dtype, { low: 0.5, high: 3, offset: INPUT_OFFSETS[4 - i]! });
        const out = calls.output(size, dtype, { offset: OUTPUT_OFFSETS[i]! });
        runDense(calls, kind, { a, b, out, size });
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
    recordedCase(`binary add ${aType} and ${bType} to ${outType}`, 'arithmetic', (calls) => {
      for (const size of SIZES) {
        const a = calls.floats(size, aType, { offset: 1 });
        const b = calls.floats(size, bType, { offset: 3 });
        const out = calls.output(size, outType);
        runDense(calls, 'add', { a, b, out, size });
      }
    }),
  );
}

function broadcastCase(dtype: DType): ConformanceCase {
  return recordedCase(`binary ${dtype} broadcast through strides`, 'arithmetic', (calls) => {
    const run = (
      kind: BinaryKind,
      shape: readonly number[],
      aStrides: readonly number[],
      bStrides: readonly number[],
    ) => {
      const operand = (strides: readonly number[], offset: number) =>
        calls.floats(extentOf(shape, strides), dtype, { offset });
      const size = shape.reduce((product, dim) => product * dim, 1);
      const call = { kind, shape, aStrides, bStrides };
      const out = calls.output(size, dtype, { offset: 2 });
      calls.run('binary', { ...call, a: operand(aStrides, 1), b: operand(bStrides, 3), out });
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
  return recordedCase('binary in place over a and over b', 'arithmetic', (calls) => {
    for (const dtype of FLOATS) {
      const a = calls.floats(63, dtype, { isWritten: true });
      const row = calls.floats(7, dtype, { offset: 1 });
      const rows = { shape: [9, 7], aStrides: [7, 1], bStrides: [0, 1] };
      calls.run('binary', { kind: 'add', a, b: row, out: a, ...rows });
      const b = calls.floats(65, dtype, { isWritten: true });
      const other = calls.floats(65, dtype, { offset: 3 });
      runDense(calls, 'sub', { a: other, b, out: b, size: 65 });
    }
  });
}

/** Takes operands that are views of one buffer, as flat parameters are, at any elements. */
function sharedInputCase(): ConformanceCase {
  return recordedCase('binary of two views of one buffer', 'arithmetic', (calls) => {
    for (const dtype of FLOATS) {
      const flat = calls.floats(300, dtype);
      const out = calls.output(65, dtype);
      const call = { a: calls.slice(flat, 3, 65), b: calls.slice(flat, 40, 65), out, size: 65 };
      runDense(calls, 'mul', call);
      const all = { a: flat, b: flat, out: calls.output(300, dtype), size: 300 };
      runDense(calls, 'mul', all);
    }
  });
}

function integerCase(dtype: 'i32' | 'u32'): ConformanceCase {
  return recordedCase(`binary ${dtype} wraps`, 'exact', (calls) => {
    for (const kind of ['add', 'sub', 'mul', 'maximum', 'minimum'] as const) {
      for (const size of [1, 65]) {
        const a = calls.anyBits(size, dtype, { offset: 1 });
        const b = calls.anyBits(size, dtype, { offset: 2 });
        runDense(calls, kind, { a, b, out: calls.output(size, dtype, { offset: 3 }), size });
      }
    }
  });
}

function runDense(
  calls: CallRecorder,
  kind: BinaryKind,
  { a, b, out, size }: { a: View; b: View; out: View; size: number },
): void {
  calls.run('binary', { kind, a, b, out, shape: [size], aStrides: [1], bStrides: [1] });
}

/** Returns the elements that a walk over `shape` with `strides` reaches. */
function extentOf(shape: readonly number[], strides: readonly number[]): number {
  return shape.reduce((last, dim, axis) => last + (dim - 1) * strides[axis]!, 1);
}
