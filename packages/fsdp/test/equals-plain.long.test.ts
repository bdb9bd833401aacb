// With SHARDWEAVE_LONG=1 every value of the axes that change the schedule of gathers and reductions
// meets every other, each cell compared with one process. The values of the other axes take turns,
// since the whole product would be a million cells.

import { describe, expect, it } from 'vitest';
import { expectAsAlone } from '../../../tooling/test-kit/index.ts';
import {
  AXES,
  type Cell,
  plainOutcome,
  shardedOutcomes,
  titleOf,
  toleranceOf,
} from './support/cells.js';

/** Axes whose cells share a test: reporting thousands of tests would take longer than running. */
const PER_TEST = ['checkpointing', 'precision', 'residence', 'nesting'] as const;
const WITHIN = ['resharding', 'accumulation', 'frozen', 'flattenParameters'] as const;
const IN_TURN = [
  'ranks',
  'forwards',
  'stepping',
  'dropout',
  'shape',
  'tied',
  'bucketCapMb',
] as const;

function product(axes: readonly (keyof Cell)[]): Partial<Cell>[] {
  return axes.reduce<Partial<Cell>[]>(
    (cells, axis) =>
      cells.flatMap((cell) => AXES[axis].map((value) => ({ ...cell, [axis]: value }))),
    [{}],
  );
}

const TIMEOUT_MS = 600_000;

it('each axis is in one of the lists', () => {
  expect([...PER_TEST, ...WITHIN, ...IN_TURN].sort()).toEqual(Object.keys(AXES).sort());
});

describe('every cell is as one process', () => {
  const turns = product(IN_TURN);
  it.each(product(PER_TEST).map((cell, at) => [titleOf(cell as Cell), cell, at] as const))(
    '%s',
    { timeout: TIMEOUT_MS },
    async (_, some, at) => {
      for (const [index, rest] of product(WITHIN).entries()) {
        // 7 and 11 share no factor with the number of turns, so that all of them come.
        const turn = turns[(7 * index + 11 * at) % turns.length];
        const cell = { ...turn, ...some, ...rest } as Cell;
        try {
          expectAsAlone(await shardedOutcomes(cell), await plainOutcome(cell), toleranceOf(cell));
        } catch (error) {
          throw new Error(`in ${titleOf(cell)}`, { cause: error });
        }
      }
    },
  );
});
