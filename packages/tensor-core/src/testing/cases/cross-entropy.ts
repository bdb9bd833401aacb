// Cases of crossEntropy and its gradient, with odd rows, invalid targets and large logits.

import type { DType } from '@shardweave/dtypes';
import { type ConformanceCase, recordedCase } from '../kit/conformance-case.js';
import { FLOATS } from '../kit/sizes.js';

/** [rows, cols] */
const SHAPES = [
  [1, 1],
  [3, 7],
  [65, 63],
  [5, 1000],
  [130, 3],
  [1, 5003],
] as const;

export function crossEntropyCases(): ConformanceCase[] {
  return [
    ...FLOATS.map((dtype) => crossEntropyCase(dtype, dtype)),
    crossEntropyCase('f16', 'f32'),
    ...FLOATS.map(inPlaceCase),
    largeLogitsCase(),
  ];
}

function crossEntropyCase(from: DType, to: DType): ConformanceCase {
  return recordedCase(`crossEntropy ${from}, and backward to ${to}`, 'sum', (calls) => {
    for (const [rows, cols] of SHAPES) {
      for (const idType of ['i32', 'u32'] as const) {
        const extent = { rows, cols };
        const logits = calls.floats(rows * cols, from, { low: -5, high: 5, offset: 1 });
        const outside = [cols, idType === 'i32' ? -100 : 2 ** 32 - 100];
        const ids = Array.from({ length: rows }, (_, i) =>
          i % 5 === 4 ? outside[i % 2]! : calls.random.integer(0, cols),
        );
        const targets = calls.values(ids, idType, { offset: 1 });
        const loss = calls.output(rows, 'f32', { offset: 1 });
        const lse = calls.output(rows, 'f32', { offset: 3 });
        calls.run('crossEntropy', { ...extent, logits, targets, loss, lse });
        const dLoss = calls.floats(rows, 'f32', { offset: 1 });
        const out = calls.output(rows * cols, to, { offset: 2 });
        calls.run('crossEntropyBackward', { ...extent, logits, targets, lse, dLoss, out });
      }
    }
  });
}

function inPlaceCase(dtype: DType): ConformanceCase {
  return recordedCase(`crossEntropyBackward ${dtype} in place`, 'transcendental', (calls) => {
    const extent = { rows: 9, cols: 65 };
    const logits = calls.floats(585, dtype, { isWritten: true });
    const targets = calls.values([0, 64, 65, 3, 4, 5, 6, 7, 8], 'u32');
    const lse = calls.floats(9, 'f32', { low: 4, high: 5 });
    const dLoss = calls.floats(9, 'f32');
    calls.run('crossEntropyBackward', { ...extent, logits, targets, lse, dLoss, out: logits });
    // The columns are the classes from 60 on, of 200. Targets lie before them, in them, after them,
    // or outside of all classes.
    const part = { ...extent, first: 60, classes: 200 };
    const others = calls.values([59, 60, 124, 125, 199, 200, -100, 0, 61], 'i32');
    const own = calls.floats(585, dtype, { isWritten: true });
    const out = { ...part, lse, dLoss, targets: others, logits: own, out: own };
    calls.run('crossEntropyBackward', out);
  });
}

function largeLogitsCase(): ConformanceCase {
  return recordedCase('crossEntropy of large logits', 'arithmetic', (calls) => {
    const extent = { rows: 2, cols: 3 };
    const logits = calls.values([1000, 0, -1000, -3e4, -3e4, -3.1e4], 'f32');
    const targets = calls.values([1, 0], 'i32');
    const lse = calls.output(2, 'f32');
    const loss = calls.output(2, 'f32', { tolerance: 'cancelling' }); // lse of 3e4 has units of 2e-3
    calls.run('crossEntropy', { ...extent, logits, targets, loss, lse });
    const dLoss = calls.values([1, 1], 'f32');
    const out = calls.output(6, 'f32', { tolerance: 'cancelling' });
    calls.run('crossEntropyBackward', { ...extent, logits, targets, lse, dLoss, out });
  });
}
