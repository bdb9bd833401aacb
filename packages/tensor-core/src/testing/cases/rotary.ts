// Cases of rotary, with positions of a range or listed, heads that stay as they are, and the
// inverse.

import type { DType } from '@shardweave/dtypes';
import { type ConformanceCase, recordedCase } from '../kit/conformance-case.js';
import { FLOATS } from '../kit/sizes.js';

/** [tokens, heads, numRotated, half, period] */
const SHAPES = [
  [1, 1, 1, 1, 1],
  [6, 3, 2, 7, 3],
  [65, 2, 2, 4, 65],
  [3, 5, 4, 63, 3],
  [2, 1, 1, 1000, 1],
  [2, 2, 1, 2051, 2],
] as const;
/** Far positions, at which an f32 angle would be off by part of a turn, and a negative one. */
const FAR = [131_071, 0, 2 ** 31 - 1, -1, 4097, 1_000_003];

export function rotaryCases(): ConformanceCase[] {
  return [
    ...FLOATS.map((dtype) => rotaryCase(dtype, dtype)),
    rotaryCase('f32', 'bf16'),
    rotaryCase('f16', 'f32'),
  ];
}

function rotaryCase(from: DType, to: DType): ConformanceCase {
  return recordedCase(`rotary ${from} to ${to}, and back`, 'transcendental', (calls) => {
    for (const [i, [tokens, heads, numRotated, half, period]] of SHAPES.entries()) {
      const size = tokens * heads * 2 * half;
      const words = Array.from({ length: 2 * half }, () => calls.random.bits());
      const frequencies = calls.values(words, 'u32', { offset: 1 });
      const places = Array.from({ length: period }, (_, index) => FAR[index % FAR.length]!);
      const listed = calls.values(places, 'i32', { offset: 3 });
      for (const positions of [undefined, listed]) {
        calls.run('rotary', {
          x: calls.floats(size, from, { offset: 1 }),
          frequencies,
          positions,
          out: calls.output(size, to, { offset: 2 }),
          tokens,
          heads,
          numRotated,
          half,
          period,
          offset: positions === undefined ? 8191 * i : 0,
          isInverse: i % 2 === 1,
        });
      }
    }
  });
}
