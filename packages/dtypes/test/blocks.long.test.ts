// A million random blocks of each type, decoded to the bits of ggml's library.

import { BLOCK_SIZES, BLOCK_TYPES } from '@shardweave/dtypes/blocks';
import { describe, expect, it } from 'vitest';
import { errorBesideGgml, firstUnlikeGgml, noGgml } from '../../../tooling/test-kit/ggml.ts';
import {
  DISTRIBUTIONS,
  randomBlocks,
  randomNumbers,
} from '../../../tooling/test-kit/random-blocks.ts';

const BLOCKS = 1e6;
const PIECE = 50_000;
const suffix = noGgml === undefined ? '' : ` (${noGgml})`;

describe.skipIf(noGgml !== undefined)(`ggml's blocks${suffix}`, () => {
  it.each(BLOCK_TYPES)('%s: a million decoded to the same bits', (type) => {
    for (let first = 0; first < BLOCKS; first += PIECE) {
      const bytes = randomBlocks(type, PIECE, first + 1);
      expect(firstUnlikeGgml(type, bytes, PIECE * BLOCK_SIZES[type].elements)).toBe(-1);
    }
  });

  it.each(BLOCK_TYPES)('%s: a million numbers encoded with no larger error', (type) => {
    for (const one of Object.keys(DISTRIBUTIONS) as (keyof typeof DISTRIBUTIONS)[]) {
      const values = randomNumbers(one, { count: 2 ** 20, seed: 99 });
      expect(errorBesideGgml(type, values), one).toBeLessThan(1.02);
    }
  });
});
