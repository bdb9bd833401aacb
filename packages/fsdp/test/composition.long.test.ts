// With SHARDWEAVE_LONG=1 the whole product of FSDP's features runs, each cell compared with one
// process. The cells take the world sizes in turn, since running every one at each would triple the
// time.

import { describe, it } from 'vitest';
import { AXES, type Cell, expectAsOneProcess, titleOf } from './support/composition-cells.js';

/** Axes whose cells share a test: reporting 23,000 tests would take longer than running them. */
const PER_TEST = ['checkpointing', 'precision', 'residence', 'nesting'] as const;

const REST = Object.keys(AXES).filter(
  (axis) => axis !== 'worldSize' && !PER_TEST.some((own) => own === axis),
) as (keyof Cell)[];

function product(axes: readonly (keyof Cell)[]): Partial<Cell>[] {
  return axes.reduce<Partial<Cell>[]>(
    (cells, axis) =>
      cells.flatMap((cell) => AXES[axis].map((value) => ({ ...cell, [axis]: value }))),
    [{}],
  );
}

const TIMEOUT_MS = 600_000;

describe('every cell is as one process', () => {
  it.each(product(PER_TEST).map((cell) => [titleOf(cell as Cell), cell] as const))(
    '%s',
    { timeout: TIMEOUT_MS },
    async (_, some) => {
      for (const [index, rest] of product(REST).entries()) {
        const worldSize = AXES.worldSize[index % AXES.worldSize.length]!;
        const cell = { worldSize, ...some, ...rest } as Cell;
        try {
          await expectAsOneProcess(cell);
        } catch (error) {
          throw new Error(`in ${titleOf(cell)}`, { cause: error });
        }
      }
    },
  );
});
