// Cases of compare and where, dense and broadcast, in every dtype.

import type { DType } from '@shardweave/dtypes';
import type { CompareKind } from '../../kernel-calls/compare.js';
import type { View } from '../../view.js';
import type { CallRecorder } from '../kit/call-recorder.js';
import { type ConformanceCase, recordedCase } from '../kit/conformance-case.js';
import { INPUT_OFFSETS, OUTPUT_OFFSETS, SIZES } from '../kit/sizes.js';

const KINDS: readonly CompareKind[] = ['eq', 'ne', 'lt', 'le', 'gt', 'ge'];
const DTYPES = ['f32', 'f16', 'bf16', 'i32', 'u32'] as const;
const { NaN: NAN, POSITIVE_INFINITY: INF } = Number;
const SPECIAL = [NAN, INF, -INF, 0, -0, 1, -1, 65504];

export function compareCases(): ConformanceCase[] {
  return [
    ...DTYPES.map(compareCase),
    ...(['f32', 'f16', 'bf16'] as const).map(specialCase),
    ...DTYPES.map((dtype) => whereCase(dtype, dtype)),
    whereCase('f16', 'f32'),
  ];
}

/** Makes an operand of five different values, so that many are equal. */
function operand(calls: CallRecorder, size: number, dtype: DType, offset: number): View {
  const low = dtype === 'u32' ? 0 : -2;
  const values = Array.from({ length: size }, () => low + calls.random.integer(0, 5));
  return calls.values(values, dtype, { offset });
}

function compareCase(dtype: DType): ConformanceCase {
  return recordedCase(`compare ${dtype}`, 'exact', (calls) => {
    for (const kind of KINDS) {
      SIZES.forEach((size, i) => {
        const a = operand(calls, size, dtype, INPUT_OFFSETS[i]!);
        const b = operand(calls, size, dtype, INPUT_OFFSETS[4 - i]!);
        const out = calls.output(size, 'u32', { offset: OUTPUT_OFFSETS[i]! });
        calls.run('compare', { kind, a, b, out, shape: [size], aStrides: [1], bStrides: [1] });
      });
      const [a, b] = [operand(calls, 7, dtype, 1), operand(calls, 9, dtype, 3)];
      const out = calls.output(63, 'u32');
      calls.run('compare', { kind, a, b, out, shape: [9, 7], aStrides: [0, 1], bStrides: [1, 0] });
      const wide = { shape: [2, 3, 2, 2, 5], aStrides: [30, 10, 0, 5, 1] };
      calls.run('compare', {
        kind,
        a: operand(calls, 60, dtype, 1),
        b: operand(calls, 30, dtype, 1),
        out: calls.output(120, 'u32'),
        ...wide,
        bStrides: [0, 10, 5, 0, 1],
      });
    }
    if (dtype === 'i32' || dtype === 'u32') {
      const a = calls.anyBits(65, dtype);
      const b = calls.anyBits(65, dtype);
      for (const kind of KINDS) {
        const out = calls.output(65, 'u32');
        calls.run('compare', { kind, a, b, out, shape: [65], aStrides: [1], bStrides: [1] });
      }
    }
  });
}

/** Compares each special value with each. */
function specialCase(dtype: DType): ConformanceCase {
  return recordedCase(`compare ${dtype} of NaN and infinities`, 'exact', (calls) => {
    const n = SPECIAL.length;
    const x = calls.values(SPECIAL, dtype);
    for (const kind of KINDS) {
      const out = calls.output(n * n, 'u32');
      calls.run('compare', {
        kind,
        a: x,
        b: x,
        out,
        shape: [n, n],
        aStrides: [1, 0],
        bStrides: [0, 1],
      });
    }
  });
}

function whereCase(dtype: DType, other: DType): ConformanceCase {
  return recordedCase(`where of ${dtype} and ${other}`, 'exact', (calls) => {
    const special = dtype === 'i32' || dtype === 'u32' ? [0, 1, 2] : SPECIAL;
    const pick = (size: number, pickedDType: DType, offset: number) =>
      calls.values(
        Array.from({ length: size }, () => special[calls.random.integer(0, special.length)]!),
        pickedDType,
        { offset },
      );
    SIZES.forEach((size, i) => {
      const condition = operand(calls, size, i % 2 === 0 ? 'u32' : 'i32', INPUT_OFFSETS[i]!);
      const a = pick(size, dtype, INPUT_OFFSETS[4 - i]!);
      const b = pick(size, other, INPUT_OFFSETS[i]!);
      const out = calls.output(size, other, { offset: OUTPUT_OFFSETS[i]! });
      const dense = { conditionStrides: [1], aStrides: [1], bStrides: [1] };
      calls.run('where', { condition, a, b, out, shape: [size], ...dense });
    });
    const condition = operand(calls, 63, 'u32', 1);
    const [row, one] = [pick(7, dtype, 3), pick(1, other, 0)];
    const out = calls.output(126, other);
    const strides = { conditionStrides: [0, 7, 1], aStrides: [0, 0, 1], bStrides: [0, 0, 0] };
    calls.run('where', { condition, a: row, b: one, out, shape: [2, 9, 7], ...strides });
  });
}
