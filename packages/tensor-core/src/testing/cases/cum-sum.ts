// Cases of cumSum.

import type { DType } from '@shardweave/dtypes';
import { type ConformanceCase, recordedCase } from '../kit/conformance-case.js';
import { FLOATS, LINE_SHAPES } from '../kit/sizes.js';

const { NaN: NAN, POSITIVE_INFINITY: INF } = Number;

export function cumSumCases(): ConformanceCase[] {
  return [...FLOATS.map(cumSumCase), cumSumIntegersCase(), ...FLOATS.map(cumSumSpecialCase)];
}

function cumSumCase(dtype: DType): ConformanceCase {
  return recordedCase(`cumSum ${dtype}, from both ends`, 'sum', (calls) => {
    for (const [outer, dim, inner] of LINE_SHAPES) {
      const size = outer * dim * inner;
      for (const isReverse of [false, true]) {
        const x = calls.floats(size, dtype, { offset: 1 });
        const out = calls.output(size, dtype, { offset: 2 });
        calls.run('cumSum', { x, out, outer, dim, inner, isReverse });
      }
    }
  });
}

function cumSumIntegersCase(): ConformanceCase {
  return recordedCase('cumSum of integers wraps', 'exact', (calls) => {
    for (const dtype of ['i32', 'u32'] as const) {
      for (const isReverse of [false, true]) {
        const x = calls.anyBits(130, dtype, { offset: 1 });
        const out = calls.output(130, dtype);
        calls.run('cumSum', { x, out, outer: 2, dim: 65, inner: 1, isReverse });
      }
    }
  });
}

/** Sums lines with NaN or infinities in the middle, which must leave the sums before them alone. */
function cumSumSpecialCase(dtype: DType): ConformanceCase {
  return recordedCase(`cumSum ${dtype} of NaN and infinities`, 'sum', (calls) => {
    const rows = [NAN, INF, -INF].flatMap((value) =>
      Array.from({ length: 65 }, (_, i) => (i === 31 ? value : calls.random.uniform(-1, 1))),
    );
    rows[40 + 65] = -INF;
    for (const isReverse of [false, true]) {
      const x = calls.values(rows, dtype);
      const out = calls.output(195, dtype);
      calls.run('cumSum', { x, out, outer: 3, dim: 65, inner: 1, isReverse });
    }
  });
}
