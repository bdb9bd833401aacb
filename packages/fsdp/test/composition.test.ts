// Every two of FSDP's features run together, and each combination is compared with one process.
// composition.long.test.ts runs the whole product.

import { expect, it } from 'vitest';
import { AXES, type Cell, expectAsOneProcess, titleOf } from './support/composition-cells.js';
import { allPairs, pairsOf, pairwiseRows } from './support/pairwise.js';

const CELLS: readonly Cell[] = pairwiseRows(AXES, 4);

it('the cells have every pair of every two axes', () => {
  const covered = new Set(CELLS.flatMap((cell) => [...pairsOf(AXES, cell).keys()]));
  expect(covered).toEqual(new Set(allPairs(AXES).keys()));
  expect(CELLS.length).toBeLessThan(30);
});

it.each(CELLS.map((cell) => [titleOf(cell), cell] as const))('%s', async (_, cell) => {
  await expectAsOneProcess(cell);
});
