// reduce and extremumBackward.

import type { DType } from '@shardweave/dtypes';
import { type ConformanceCase, twinCase } from '../conformance-case.js';
import { FLOATS } from '../sizes.js';

/** [outer, dim, inner]: rows, columns, the middle, one element, more rows than a workgroup. */
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
  return twinCase(`reduce ${from} to ${to}`, 'sum', (twin) => {
    for (const [outer, dim, inner] of SHAPES) {
      for (const kind of KINDS) {
        const x = twin.floats(outer * dim * inner, from, { offset: 1 });
        const out = twin.output(outer * inner, to, { offset: 2 });
        twin.run('reduce', { kind, x, out, outer, dim, inner });
      }
    }
  });
}

function extremumCase(dtype: DType): ConformanceCase {
  return twinCase(`extremumBackward ${dtype} with ties`, 'arithmetic', (twin) => {
    for (const [outer, dim, inner] of SHAPES) {
      const extent = { outer, dim, inner };
      const size = outer * dim * inner;
      const values = Array.from({ length: size }, () => twin.random.integer(-2, 3));
      const x = twin.values(values, dtype, { offset: 1 });
      const y = twin.output(outer * inner, dtype, { tolerance: 'exact' });
      twin.run('reduce', { kind: 'max', x, out: y, ...extent });
      const dy = twin.floats(outer * inner, dtype, { offset: 3 });
      twin.run('extremumBackward', { x, y, dy, out: twin.output(size, dtype), ...extent });
    }
  });
}

/** A kernel that starts its maximum at 0, or takes padding for values, fails here. */
function negativeExtremumCase(): ConformanceCase {
  return twinCase('reduce: extrema of one sign', 'exact', (twin) => {
    for (const dtype of FLOATS) {
      for (const [kind, low, high] of [
        ['max', -9, -1],
        ['min', 1, 9],
      ] as const) {
        const x = twin.floats(5 * 63, dtype, { low, high, offset: 1 });
        twin.run('reduce', { kind, x, out: twin.output(5, dtype), outer: 5, dim: 63, inner: 1 });
      }
    }
  });
}
