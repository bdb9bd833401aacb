// Cases of topK.

import type { DType } from '@shardweave/dtypes';
import { type ConformanceCase, recordedCase } from '../kit/conformance-case.js';
import { FLOATS, LINE_SHAPES } from '../kit/sizes.js';

const { NaN: NAN, POSITIVE_INFINITY: INF } = Number;

export function topKCases(): ConformanceCase[] {
  return [...FLOATS.map(topKCase), ...FLOATS.map(topKSpecialCase)];
}

/** Takes coarse values, so that many are equal, and up to 65 results of an axis. */
function topKCase(dtype: DType): ConformanceCase {
  return recordedCase(`topK ${dtype}`, 'exact', (calls) => {
    for (const [outer, dim, inner] of LINE_SHAPES) {
      const size = outer * dim * inner;
      const values = Array.from({ length: size }, () => calls.random.integer(0, 12) / 4 - 1);
      const x = calls.values(values, dtype, { offset: 3 });
      for (const count of new Set([1, Math.min(dim, 5), Math.min(dim, 65)])) {
        const out = calls.output(outer * count * inner, 'i32', { offset: 1 });
        calls.run('topK', { x, out, outer, dim, inner, count });
      }
    }
  });
}

function topKSpecialCase(dtype: DType): ConformanceCase {
  return recordedCase(`topK ${dtype} of NaN and infinities`, 'exact', (calls) => {
    const special = [-INF, 1, NAN, -0, INF, 0, NAN, -1, INF, -INF];
    const long = Array.from({ length: 70 }, (_, i) => special[(i * 7) % 10]!);
    if (dtype === 'f32') {
      // Infinity minus infinity is a NaN with its sign bit set on x86.
      const words = Uint32Array.of(0x3f800000, 0xffc00000, 0x7f800000, 0x7fc00000);
      const x = calls.bits(words, dtype);
      const out = calls.output(4, 'i32');
      calls.run('topK', { x, out, outer: 1, dim: 4, inner: 1, count: 4 });
    }
    for (const values of [special, long]) {
      const dim = values.length;
      const x = calls.values(values, dtype);
      const out = calls.output(dim, 'i32');
      calls.run('topK', { x, out, outer: 1, dim, inner: 1, count: dim });
      const lowest = calls.values(new Array(dim).fill(-INF), dtype);
      const first = calls.output(1, 'i32');
      calls.run('topK', { x: lowest, out: first, outer: 1, dim, inner: 1, count: 1 });
    }
  });
}
