// Cases of gather and its gradient, of topK and of cumSum, over rows and over inner axes.

import type { DType } from '@shardweave/dtypes';
import type { CallRecorder } from '../kit/call-recorder.js';
import { type ConformanceCase, recordedCase } from '../kit/conformance-case.js';
import { FLOATS } from '../kit/sizes.js';

const { NaN: NAN, POSITIVE_INFINITY: INF } = Number;
/** [outer, dim, inner, count] */
const SHAPES = [
  [1, 1, 1, 1],
  [3, 7, 1, 9],
  [2, 5, 7, 3],
  [1, 63, 3, 65],
  [20, 65, 1, 2],
  [2, 1000, 1, 7],
  [1, 3, 65, 1],
] as const;

export function gatherCases(): ConformanceCase[] {
  return [
    ...FLOATS.map(gatherCase),
    gatherIntegersCase(),
    ...FLOATS.map(topKCase),
    ...FLOATS.map(topKSpecialCase),
    ...FLOATS.map(cumSumCase),
    cumSumIntegersCase(),
    ...FLOATS.map(cumSumSpecialCase),
  ];
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
    for (const [outer, dim, inner, count] of SHAPES) {
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

/** Takes coarse values, so that many are equal, and up to 65 results of an axis. */
function topKCase(dtype: DType): ConformanceCase {
  return recordedCase(`topK ${dtype}`, 'exact', (calls) => {
    for (const [outer, dim, inner] of SHAPES) {
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

function cumSumCase(dtype: DType): ConformanceCase {
  return recordedCase(`cumSum ${dtype}, from both ends`, 'sum', (calls) => {
    for (const [outer, dim, inner] of SHAPES) {
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
