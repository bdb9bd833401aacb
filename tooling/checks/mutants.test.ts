// The lists of mutants fit the tree. `npm run mutants` runs the mutants.
import { expect, it } from 'vitest';
import { faultsOf, readMutants } from '../mutants/read-lists.mjs';

const mutants = readMutants();

it('each mutant finds its place in the source, and its test', () => {
  const faults = mutants.flatMap((mutant) =>
    faultsOf(mutant).map((fault) => `${mutant.list}/${mutant.id}: ${fault}`),
  );
  expect(faults).toEqual([]);
});

it('no two mutants of a list have one name', () => {
  const names = mutants.map(({ list, id }) => `${list}/${id}`);
  expect(names.filter((name, index) => names.indexOf(name) !== index)).toEqual([]);
});
