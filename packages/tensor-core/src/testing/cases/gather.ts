// Cases of gather and its gradient.

import type { DType } from '@shardweave/dtypes';
import type { CallRecorder } from '../kit/call-recorder.js';
import { type ConformanceCase, recordedCase } from '../kit/conformance-case.js';
import { FLOATS, LINE_SHAPES } from '../kit/sizes.js';

export function gatherCases(): ConformanceCase[] {
  return [...FLOATS.map(gatherCase), gatherIntegersCase()];
}

/** Makes indices of which some repeat and some lie outside. */
function idsOf(calls: CallRecorder, size: number, dim: number) {
  const ids = Array.from({ length: size }, (_, i) => {
    return i % 11 === 10
      ? [dim, -1, -(2 ** 31)][calls.random.integer(0, 3)]!
      : calls.random.integer(0, dim);
  });
  return calls.values(ids, 'i32', { offset: 1 });
}

function gatherCase(dtype: DType): ConformanceCase {
  return recordedCase(`gather ${dtype}, and backward`, 'exact', (calls) => {
    for (const [outer, dim, inner, count] of LINE_SHAPES) {
      const extent = { outer, dim, inner, count };
      const [all, picked] = [outer * dim * inner, outer * count * inner];
      const ids = idsOf(calls, picked, dim);
      const x = calls.floats(all, dtype, { offset: 1 });
      calls.run('gather', { ...extent, x, ids, out: calls.output(picked, dtype, { offset: 2 }) });
      const dy = calls.floats(picked, dtype, { offset: 3 });
      const dx = calls.output(all, dtype, { offset: 2, tolerance: 'sum' });
      calls.run('gatherBackward', { ...extent, ids, dy, dx });
    }
  });
}

function gatherIntegersCase(): ConformanceCase {
  return recordedCase('gather of integers', 'exact', (calls) => {
    for (const dtype of ['i32', 'u32'] as const) {
      const extent = { outer: 3, dim: 7, inner: 2, count: 5 };
      const ids = idsOf(calls, 30, 7);
      calls.run('gather', {
        ...extent,
        x: calls.anyBits(42, dtype),
        ids,
        out: calls.output(30, dtype),
      });
    }
  });
}
