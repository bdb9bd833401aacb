// Cases of random, whose numbers are equal to the bit from any place of the stream, with bounds or
// without.

import { type ConformanceCase, recordedCase } from '../kit/conformance-case.js';
import { FLOATS, OUTPUT_OFFSETS, SIZES } from '../kit/sizes.js';

/** Places of the stream: at a block's start and inside one, and where the counter's words carry. */
const OFFSETS = [0, 1, 70, 2 ** 34 - 6, 2 ** 45 + 3] as const;
/** `first` and `range` of all of the distribution, of its middle, and of a tail. */
const RANGES = [
  [0, 0],
  [97_714_219, 4_099_538_858],
  [4_294_000_000, 900_000],
] as const;

/**
 * Places of the distribution beside the ends of the table's segments, where a kernel easily takes
 * the row of the next segment.
 */
const ENDS = Array.from({ length: 32 }, (_, octave) => [
  2 ** octave - 1,
  2 ** octave,
  Math.floor(1.5 * 2 ** octave) - 1,
  2 ** 32 - 2 ** octave,
]).flat();

export function randomCases(): ConformanceCase[] {
  return [
    ...FLOATS.map((dtype) =>
      recordedCase(`random uniform ${dtype}`, 'exact', (calls) => {
        SIZES.forEach((size, i) => {
          const out = calls.output(size, dtype, { offset: OUTPUT_OFFSETS[i]! });
          const key = { key0: calls.random.bits(), key1: calls.random.bits() };
          const call = { kind: 'uniform' as const, scale: 0.3 * 2 ** -24, first: 0, range: 0 };
          calls.run('random', { ...call, ...key, out, counterOffset: OFFSETS[i]! });
        });
      }),
    ),
    ...FLOATS.map((dtype) =>
      recordedCase(`random normal ${dtype}`, 'exact', (calls) => {
        for (const [first, range] of RANGES) {
          SIZES.forEach((size, i) => {
            const out = calls.output(size, dtype, { offset: OUTPUT_OFFSETS[i]! });
            const key = { key0: calls.random.bits(), key1: calls.random.bits() };
            const call = { kind: 'normal' as const, scale: 0.02 * 2 ** -21, first, range };
            calls.run('random', { ...call, ...key, out, counterOffset: OFFSETS[i]! });
          });
        }
      }),
    ),
    recordedCase('random normal at the ends of segments', 'exact', (calls) => {
      for (const first of ENDS) {
        const call = { kind: 'normal' as const, scale: 2 ** -21, first, range: 1 };
        calls.run('random', {
          ...call,
          key0: 1,
          key1: 2,
          out: calls.output(1, 'f32'),
          counterOffset: 0,
        });
      }
    }),
  ];
}
