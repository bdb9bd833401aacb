// Cases of softmax and log-softmax, plain and causal, and of their gradients.

import type { DType } from '@shardweave/dtypes';
import { type ConformanceCase, recordedCase } from '../kit/conformance-case.js';
import { FLOATS } from '../kit/sizes.js';

/** The shapes [rows, cols]. A 16-bit row of odd length shares a word with the next. */
const SHAPES = [
  [1, 1],
  [3, 7],
  [5, 63],
  [4, 65],
  [2, 1000],
  [70, 5],
  [1, 3001],
] as const;
/** [rows, cols, causalRows]: square, more keys than queries, one query, several heads. */
const CAUSAL_SHAPES = [
  [7, 7, 7],
  [21, 7, 7],
  [6, 9, 3],
  [4, 65, 1],
  [130, 65, 65],
  [4, 1, 1],
] as const;

export function softmaxCases(): ConformanceCase[] {
  return [
    ...FLOATS.map((dtype) => plainCase(dtype, dtype)),
    plainCase('f32', 'f16'),
    plainCase('bf16', 'f32'),
    ...FLOATS.map(causalCase),
    ...FLOATS.map(inPlaceCase),
    extremeCase(),
  ];
}

function plainCase(from: DType, to: DType): ConformanceCase {
  return recordedCase(`softmax ${from} to ${to}, and backward`, 'transcendental', (calls) => {
    for (const [rows, cols] of SHAPES) {
      for (const isLog of [false, true]) {
        const size = rows * cols;
        const call = { rows, cols, scale: 0.7, isLog };
        const x = calls.floats(size, from, { low: -4, high: 4, offset: 1 });
        const out = calls.output(size, to, { offset: 2 });
        calls.run('softmax', { ...call, x, out, causalRows: 0 });
        const y = isLog
          ? calls.floats(size, to, { low: -8, high: -4, offset: 3 })
          : calls.floats(size, to, { low: 0, high: 2 / cols, offset: 3 });
        const dy = calls.floats(size, to, { offset: 1 });
        const dx = calls.output(size, from, { tolerance: 'sum' });
        calls.run('softmaxBackward', { ...call, y, dy, out: dx });
      }
    }
  });
}

function causalCase(dtype: DType): ConformanceCase {
  return recordedCase(`softmax ${dtype} causal`, 'transcendental', (calls) => {
    for (const [rows, cols, causalRows] of CAUSAL_SHAPES) {
      for (const isLog of [false, true]) {
        const x = calls.floats(rows * cols, dtype, { low: -4, high: 4, offset: 1 });
        const out = calls.output(rows * cols, dtype);
        calls.run('softmax', { x, out, rows, cols, scale: 0.5, isLog, causalRows });
      }
    }
  });
}

function inPlaceCase(dtype: DType): ConformanceCase {
  return recordedCase(`softmax ${dtype} in place`, 'transcendental', (calls) => {
    const extent = { rows: 9, cols: 65, scale: 1.5 };
    for (const causalRows of [0, 9]) {
      const x = calls.floats(585, dtype, { isWritten: true });
      calls.run('softmax', { ...extent, x, out: x, isLog: false, causalRows });
    }
    const y = calls.floats(585, dtype, { low: 0, high: 0.03 });
    const dy = calls.floats(585, dtype, { isWritten: true });
    calls.run('softmaxBackward', { ...extent, y, dy, out: dy, isLog: false });
  });
}

/** Takes scores whose exp overflows unless the row's maximum is subtracted first. */
function extremeCase(): ConformanceCase {
  return recordedCase('softmax of large scores', 'transcendental', (calls) => {
    const lowest = Number.NEGATIVE_INFINITY;
    const x = calls.values([3e4, 3e4, -3e4, -200, -200, -201, 1, lowest, 2], 'f32');
    const extent = { rows: 3, cols: 3, scale: 1, causalRows: 0 };
    calls.run('softmax', { x, out: calls.output(9, 'f32'), ...extent, isLog: false });
    calls.run('softmax', { x, out: calls.output(9, 'f32'), ...extent, isLog: true });
  });
}
