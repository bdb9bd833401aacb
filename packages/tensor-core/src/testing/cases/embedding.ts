// Cases of embedding and its gradient, with repeated, absent and invalid ids.

import type { DType } from '@shardweave/dtypes';
import type { CallRecorder } from '../kit/call-recorder.js';
import { type ConformanceCase, recordedCase } from '../kit/conformance-case.js';
import { FLOATS } from '../kit/sizes.js';

/** The shapes [rows, cols, count]. 16-bit rows of odd length start in the middle of a word. */
const SHAPES = [
  [1, 1, 1],
  [5, 7, 3],
  [10, 64, 65],
  [257, 9, 130],
  [3, 1, 1000],
  [90, 2, 1500],
  [40, 130, 7],
] as const;

export function embeddingCases(): ConformanceCase[] {
  return [
    ...FLOATS.map((dtype) => embeddingCase(dtype, dtype)),
    embeddingCase('f32', 'bf16'),
    embeddingCase('f16', 'f32'),
  ];
}

function embeddingCase(table: DType, out: DType): ConformanceCase {
  return recordedCase(`embedding ${table} to ${out}, and backward`, 'arithmetic', (calls) => {
    for (const [rows, cols, count] of SHAPES) {
      for (const idType of ['i32', 'u32'] as const) {
        const extent = { rows, cols, count };
        const ids = idsOf(calls, { rows, count, idType });
        calls.run('embedding', {
          ...extent,
          table: calls.floats(rows * cols, table, { offset: 1 }),
          ids,
          out: calls.output(count * cols, out, { offset: 2 }),
        });
        calls.run('embeddingBackward', {
          ...extent,
          ids,
          dy: calls.floats(count * cols, out, { offset: 3 }),
          dTable: calls.output(rows * cols, table, { offset: 2, tolerance: 'sum' }),
        });
      }
    }
  });
}

/** Makes ids that are mostly valid, the last row among them, some just outside and some far off. */
function idsOf(
  calls: CallRecorder,
  { rows, count, idType }: { rows: number; count: number; idType: 'i32' | 'u32' },
) {
  const outside = idType === 'i32' ? [rows, -1, -(2 ** 31)] : [rows, 2 ** 31, 2 ** 32 - 1];
  const ids = Array.from({ length: count }, (_, i) => {
    if (i % 11 === 10) {
      return outside[calls.random.integer(0, 3)]!;
    }
    return i === 0 ? rows - 1 : calls.random.integer(0, rows);
  });
  return calls.values(ids, idType, { offset: 1 });
}
