// Cases of reduce and extremumBackward.

import type { DType } from '@shardweave/dtypes';
import { type ConformanceCase, recordedCase } from '../kit/conformance-case.js';
import { FLOATS } from '../kit/sizes.js';

/**
 * The shapes [outer, dim, inner]: rows, columns, middle axes, one element, and more rows than a
 * workgroup has invocations.
 */
const SHAPES = [
  [1, 1, 1],
  [1, 1000, 1],
  [7, 65, 1],
  [1, 63, 65],
  [5, 7, 9],
  [130, 3, 1],
  [3, 1, 7],
  [1, 5000, 1],
  [2, 300, 3],
] as const;
const KINDS = ['sum', 'mean', 'max', 'min'] as const;

export function reduceCases(): ConformanceCase[] {
  return [
    ...FLOATS.map((dtype) => reduceCase(dtype, dtype)),
    reduceCase('f16', 'f32'),
    reduceCase('f32', 'bf16'),
    ...FLOATS.map(extremumCase),
    negativeExtremumCase(),
  ];
}

function reduceCase(from: DType, to: DType): ConformanceCase {
  return recordedCase(`reduce ${from} to ${to}`, 'sum', (calls) => {
    for (const [outer, dim, inner] of SHAPES) {
      for (const kind of KINDS) {
        const x = calls.floats(outer * dim * inner, from, { offset: 1 });
        const out = calls.output(outer * inner, to, { offset: 2 });
        calls.run('reduce', { kind, x, out, outer, dim, inner });
      }
    }
  });
}

function extremumCase(dtype: DType): ConformanceCase {
  return recordedCase(`extremumBackward ${dtype} with ties`, 'arithmetic', (calls) => {
    for (const [outer, dim, inner] of SHAPES) {
      const extent = { outer, dim, inner };
      const size = outer * dim * inner;
      const values = Array.from({ length: size }, () => calls.random.integer(-2, 3));
      const x = calls.values(values, dtype, { offset: 1 });
      const y = calls.output(outer * inner, dtype, { tolerance: 'exact' });
      calls.run('reduce', { kind: 'max', x, out: y, ...extent });
      const dy = calls.floats(outer * inner, dtype, { offset: 3 });
      calls.run('extremumBackward', { x, y, dy, out: calls.output(size, dtype), ...extent });
    }
  });
}

/** Takes extrema of one sign, which a kernel misses that starts at 0 or reads padding. */
function negativeExtremumCase(): ConformanceCase {
  return recordedCase('reduce: extrema of one sign', 'exact', (calls) => {
    for (const dtype of FLOATS) {
      for (const [kind, low, high] of [
        ['max', -9, -1],
        ['min', 1, 9],
      ] as const) {
        const x = calls.floats(5 * 63, dtype, { low, high, offset: 1 });
        calls.run('reduce', { kind, x, out: calls.output(5, dtype), outer: 5, dim: 63, inner: 1 });
      }
    }
  });
}
