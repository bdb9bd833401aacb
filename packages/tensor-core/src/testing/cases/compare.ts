// compare and where, dense and broadcast, of every dtype.

import type { DType } from '@shardweave/dtypes';
import type { CompareKind } from '../../kernel-calls/elementwise.js';
import type { View } from '../../view.js';
import { type ConformanceCase, twinCase } from '../conformance-case.js';
import { INPUT_OFFSETS, OUTPUT_OFFSETS, SIZES } from '../sizes.js';
import type { Twin } from '../twin.js';

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

/** Few values, so that many are equal. */
function operand(twin: Twin, size: number, dtype: DType, offset: number): View {
  const low = dtype === 'u32' ? 0 : -2;
  const values = Array.from({ length: size }, () => low + twin.random.integer(0, 5));
  return twin.values(values, dtype, { offset });
}

function compareCase(dtype: DType): ConformanceCase {
  return twinCase(`compare ${dtype}`, 'exact', (twin) => {
    for (const kind of KINDS) {
      SIZES.forEach((size, i) => {
        const a = operand(twin, size, dtype, INPUT_OFFSETS[i]!);
        const b = operand(twin, size, dtype, INPUT_OFFSETS[4 - i]!);
        const out = twin.output(size, 'u32', { offset: OUTPUT_OFFSETS[i]! });
        twin.run('compare', { kind, a, b, out, shape: [size], aStrides: [1], bStrides: [1] });
      });
      const [a, b] = [operand(twin, 7, dtype, 1), operand(twin, 9, dtype, 3)];
      const out = twin.output(63, 'u32');
      twin.run('compare', { kind, a, b, out, shape: [9, 7], aStrides: [0, 1], bStrides: [1, 0] });
      const wide = { shape: [2, 3, 2, 2, 5], aStrides: [30, 10, 0, 5, 1] };
      twin.run('compare', {
        kind,
        a: operand(twin, 60, dtype, 1),
        b: operand(twin, 30, dtype, 1),
        out: twin.output(120, 'u32'),
        ...wide,
        bStrides: [0, 10, 5, 0, 1],
      });
    }
    if (dtype === 'i32' || dtype === 'u32') {
      const a = twin.anyBits(65, dtype);
      const b = twin.anyBits(65, dtype);
      for (const kind of KINDS) {
        const out = twin.output(65, 'u32');
        twin.run('compare', { kind, a, b, out, shape: [65], aStrides: [1], bStrides: [1] });
      }
    }
  });
}

/** Every value with every other. */
function specialCase(dtype: DType): ConformanceCase {
  return twinCase(`compare ${dtype} of NaN and infinities`, 'exact', (twin) => {
    const n = SPECIAL.length;
    const x = twin.values(SPECIAL, dtype);
    for (const kind of KINDS) {
      const out = twin.output(n * n, 'u32');
      twin.run('compare', {
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
  return twinCase(`where of ${dtype} and ${other}`, 'exact', (twin) => {
    const special = dtype === 'i32' || dtype === 'u32' ? [0, 1, 2] : SPECIAL;
    const pick = (size: number, of: DType, offset: number) =>
      twin.values(
        Array.from({ length: size }, () => special[twin.random.integer(0, special.length)]!),
        of,
        { offset },
      );
    SIZES.forEach((size, i) => {
      const condition = operand(twin, size, i % 2 === 0 ? 'u32' : 'i32', INPUT_OFFSETS[i]!);
      const a = pick(size, dtype, INPUT_OFFSETS[4 - i]!);
      const b = pick(size, other, INPUT_OFFSETS[i]!);
      const out = twin.output(size, other, { offset: OUTPUT_OFFSETS[i]! });
      const dense = { conditionStrides: [1], aStrides: [1], bStrides: [1] };
      twin.run('where', { condition, a, b, out, shape: [size], ...dense });
    });
    const condition = operand(twin, 63, 'u32', 1);
    const [row, one] = [pick(7, dtype, 3), pick(1, other, 0)];
    const out = twin.output(126, other);
    const strides = { conditionStrides: [0, 7, 1], aStrides: [0, 0, 1], bStrides: [0, 0, 0] };
    twin.run('where', { condition, a: row, b: one, out, shape: [2, 9, 7], ...strides });
  });
}
