// Who goes on where some members have no path to each other.

import { describe, expect, it } from 'vitest';
import { largestLinked } from '../src/membership/largest-linked.js';

describe('the largest set with paths between all', () => {
  const search = (cuts: readonly (readonly [number, number])[], needed = (_: number) => true) =>
    largestLinked(
      [0, 1, 2, 3, 4],
      (a, b) => cuts.some(([x, y]) => (x === a && y === b) || (x === b && y === a)),
      needed,
    );

  it.each([
    ['leaves out nobody without a cut', [], [0, 1, 2, 3, 4]],
    [
      'leaves out the one with most cuts',
      [
        [0, 1],
        [0, 2],
        [0, 3],
      ],
      [1, 2, 3, 4],
    ],
    ['keeps the lower id of a pair', [[2, 4]], [0, 1, 2, 3]],
    [
      'keeps the larger part',
      [
        [0, 2],
        [0, 3],
        [0, 4],
        [1, 2],
        [1, 3],
        [1, 4],
      ],
      [2, 3, 4],
    ],
    [
      'keeps one of each of two pairs',
      [
        [0, 1],
        [2, 3],
      ],
      [0, 2, 4],
    ],
  ] as const)('%s', (_, cuts, expected) => {
    expect(search(cuts)).toEqual(expected);
  });

  it('has one of those that are needed, though another set is larger', () => {
    const cuts = [
      [0, 1],
      [0, 2],
      [0, 3],
      [0, 4],
    ] as const;
    expect(search(cuts, (id) => id === 0)).toEqual([0]);
  });

  it('is found of many with cuts at random', () => {
    const ids = Array.from({ length: 128 }, (_, id) => id);
    const isCut = (a: number, b: number) => a !== b && (a * b + a + b) % 3 === 0;
    const found = largestLinked(ids, isCut, () => true);
    expect(found.length).toBeGreaterThan(1);
    expect(found.some((a) => found.some((b) => isCut(a, b)))).toBe(false);
  });
});
