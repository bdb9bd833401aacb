import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { dealBySpeed, GroupSpeed } from '../src/rank/elastic/group-speed.js';

describe('groups are dealt by speed', () => {
  it.each([
    [8, [10, 10, 30], [4, 3, 1]],
    [8, [10, 10, 10], [3, 3, 2]],
    [8, [10, 10.4, 9.8], [3, 2, 3]],
    [8, [undefined, undefined], [4, 4]],
    [8, [10, undefined, 30], [5, 2, 1]],
    [2, [10, 10, 1], [1, 1, 0]],
  ])('%i over ranks that take %j ms are %j', (groups, groupMs, counts) => {
    expect(dealBySpeed(groups, groupMs)).toEqual(counts);
  });

  it('so that no other deal of them ends earlier', () => {
    const times = fc.array(fc.integer({ min: 1, max: 99 }), { minLength: 1, maxLength: 4 });
    fc.assert(
      fc.property(fc.integer({ min: 4, max: 9 }), times, (groups, groupMs) => {
        const endOf = (counts: readonly number[]) =>
          Math.max(...counts.map((count, rank) => count * groupMs[rank]!));
        const counts = dealBySpeed(groups, groupMs);
        expect(counts.reduce((sum, count) => sum + count, 0)).toBe(groups);
        for (const other of dealsOf(groups, groupMs.length)) {
          expect(endOf(counts)).toBeLessThanOrEqual(endOf(other));
        }
      }),
      { numRuns: 50 },
    );
  });
});

/** All deals of groups in which each rank gets one at least. */
function dealsOf(groups: number, ranks: number): number[][] {
  if (ranks === 1) {
    return [[groups]];
  }
  return Array.from({ length: groups - ranks + 1 }, (_, i) => i + 1).flatMap((first) =>
    dealsOf(groups - first, ranks - 1).map((others) => [first, ...others]),
  );
}

it('the time of a group is the median of the last fifteen, to three digits', () => {
  const speed = new GroupSpeed();
  expect(speed.groupMs).toBeUndefined();
  for (const ms of [900, 900, undefined, 1.23456, 1.23456, 1.23456, ...Array(12).fill(7.7777)]) {
    speed.note(ms);
  }
  expect(speed.groupMs).toBe(7.78);
});
