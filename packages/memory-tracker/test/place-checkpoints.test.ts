// The exact partition is compared with fairscale's expected values and with trying every cut.

import { MemoryTrackerConfigError, placeCheckpoints } from '@shardweave/memory-tracker';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

const PINNED = [10, 8, 8, 9, 7, 7, 5, 4, 4];

describe('placeCheckpoints', () => {
  it('finds the known optima', () => {
    expect(placeCheckpoints(PINNED, 0)).toEqual({ maxRun: 62, splits: [] });
    expect(placeCheckpoints(PINNED, 1)).toEqual({ maxRun: 35, splits: [4] });
    expect(placeCheckpoints(PINNED, 2).maxRun).toBe(24);
    expect(placeCheckpoints(PINNED, PINNED.length)).toEqual({
      maxRun: 10,
      splits: [1, 2, 3, 4, 5, 6, 7, 8],
    });
  });

  it('equals the best of all partitions', () => {
    const sizes = fc.array(fc.integer({ min: 0, max: 50 }), { minLength: 1, maxLength: 9 });
    fc.assert(
      fc.property(sizes, fc.integer({ min: 0, max: 10 }), (layers, numCheckpoints) => {
        const { maxRun, splits } = placeCheckpoints(layers, numCheckpoints);
        const numSplits = Math.min(numCheckpoints, layers.length - 1);
        const all = partitions(layers.length, numSplits);
        const best = Math.min(...all.map((cuts) => largestRun(layers, cuts)));
        expect(maxRun).toBe(best);
        // There are as many cuts as asked for, in ascending order, and no run is empty.
        expect(all).toContainEqual(splits);
        expect(largestRun(layers, splits)).toBe(maxRun);
      }),
      { seed: 42, numRuns: 300 },
    );
  });

  it('takes the shortest first run among equally good ones', () => {
    expect(placeCheckpoints([0, 5, 0], 1)).toEqual({ maxRun: 5, splits: [1] });
    expect(placeCheckpoints([1, 0, 1, 3, 0], 2)).toEqual({ maxRun: 3, splits: [1, 3] });
  });

  it('solves a thousand layers', () => {
    const sizes = Array.from({ length: 1000 }, (_, i) => 1 + (i % 7));
    const { maxRun, splits } = placeCheckpoints(sizes, 31);
    expect(splits).toHaveLength(31);
    expect(largestRun(sizes, splits)).toBe(maxRun);
    const total = sizes.reduce((sum, size) => sum + size, 0);
    expect(maxRun).toBeGreaterThanOrEqual(total / 32);
    expect(maxRun).toBeLessThan(total / 32 + 7);
  });

  it('refuses invalid sizes and counts', () => {
    expect(placeCheckpoints([], 3)).toEqual({ maxRun: 0, splits: [] });
    for (const sizes of [[1, -1], [Number.NaN], [Number.POSITIVE_INFINITY]]) {
      expect(() => placeCheckpoints(sizes, 1)).toThrow(MemoryTrackerConfigError);
    }
    for (const count of [-1, 0.5, Number.NaN]) {
      expect(() => placeCheckpoints([1, 2], count)).toThrow(/whole number of checkpoints/);
    }
  });
});

/** Returns every way to cut `length` items `numSplits` times into non-empty runs. */
function partitions(length: number, numSplits: number, from = 1): number[][] {
  if (numSplits === 0) {
    return [[]];
  }
  const found: number[][] = [];
  for (let split = from; split <= length - numSplits; split++) {
    for (const rest of partitions(length, numSplits - 1, split + 1)) {
      found.push([split, ...rest]);
    }
  }
  return found;
}

function largestRun(sizes: readonly number[], splits: readonly number[]): number {
  const ends = [...splits, sizes.length];
  const sums = ends.map((end, i) => {
    const start = i === 0 ? 0 : ends[i - 1]!;
    return sizes.slice(start, end).reduce((sum, size) => sum + size, 0);
  });
  return Math.max(...sums);
}
