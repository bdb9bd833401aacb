// Cases of dropout, which must drop the same elements on every device, at all sizes, places and
// counters.

import type { DType } from '@shardweave/dtypes';
import { type ConformanceCase, recordedCase } from '../kit/conformance-case.js';
import { FLOATS, INPUT_OFFSETS, OUTPUT_OFFSETS, SIZES } from '../kit/sizes.js';

/** Counters within a block of four, at carries of the low word, and far beyond them. */
const COUNTER_OFFSETS = [0, 1, 2, 3, 5, 2 ** 32 - 2, 2 ** 34 - 3, 2 ** 34 + 2, 2 ** 50 + 7];
const PROBABILITIES = [0, 1e-9, 0.1, 0.5, 0.9, 1 - 2 ** -20];

export function dropoutCases(): ConformanceCase[] {
  return [
    ...FLOATS.map((dtype) => dropoutCase(dtype, dtype)),
    dropoutCase('f16', 'f32'),
    countersCase(),
    probabilitiesCase(),
  ];
}

/**
 * Inputs stay away from 0 here and below, so that a dropped element never looks like a kept one.
 */
function dropoutCase(from: DType, to: DType): ConformanceCase {
  return recordedCase(`dropout ${from} to ${to}`, 'arithmetic', (calls) => {
    SIZES.forEach((size, i) => {
      const call = { p: 0.3, key0: 0x12345678, key1: 0x9abcdef0, counterOffset: 4 * i + i };
      const x = calls.floats(size, from, { low: 0.5, high: 2, offset: INPUT_OFFSETS[i]! });
      calls.run('dropout', {
        x,
        out: calls.output(size, to, { offset: OUTPUT_OFFSETS[i]! }),
        ...call,
      });
      const inPlace = calls.floats(size, from, { low: 0.5, high: 2, isWritten: true });
      calls.run('dropout', { x: inPlace, out: inPlace, ...call });
    });
  });
}

function countersCase(): ConformanceCase {
  return recordedCase('dropout with counters up to 2^50', 'arithmetic', (calls) => {
    for (const dtype of ['f32', 'f16'] as const) {
      for (const counterOffset of COUNTER_OFFSETS) {
        const x = calls.floats(101, dtype, { low: 0.5, high: 2 });
        const key = { key0: calls.random.bits(), key1: calls.random.bits() };
        calls.run('dropout', { x, out: calls.output(101, dtype), p: 0.5, ...key, counterOffset });
      }
    }
  });
}

function probabilitiesCase(): ConformanceCase {
  return recordedCase('dropout with probabilities from 0 to almost 1', 'arithmetic', (calls) => {
    for (const p of PROBABILITIES) {
      const x = calls.floats(1000, 'f32', { low: 0.5, high: 2 });
      const key = { key0: 0xffffffff, key1: 0 };
      calls.run('dropout', { x, out: calls.output(1000, 'f32'), p, ...key, counterOffset: 0 });
    }
  });
}
