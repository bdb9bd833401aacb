// The mpi transport under a real mpirun: the conformance suite, the bits of the other transports, and
// how processes end.

import { createMemoryGroup } from '@shardweave/collectives';
import { conformanceCases, transcriptHash } from '@shardweave/collectives/testing';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { mpiSkips } from './support/mpi-skips.js';
import { MpiProgram, type MpirunResult, mpiProblem } from './support/mpirun.js';

const problem = mpiProblem();
const suffix = problem === undefined ? '' : ` (${problem})`;

describe.skipIf(problem !== undefined)(`ranks under mpirun${suffix}`, () => {
  let program: MpiProgram;

  beforeAll(async () => {
    program = new MpiProgram();
    await program.build('mpi-rank.ts');
  });

  afterAll(() => program?.[Symbol.dispose]());

  describe.each([1, 2, 3, 4, 8])('the conformance suite on %i ranks', (worldSize) => {
    let run: MpirunResult;

    beforeAll(async () => {
      run = await program.run(worldSize, 'cases');
    }, 120_000);

    const cases = conformanceCases.filter(({ worldSizes }) => worldSizes.includes(worldSize));
    for (const { name } of cases) {
      const reason = mpiSkips[name];
      const title = reason === undefined ? name : `${name} (${reason})`;
      it.skipIf(reason !== undefined)(title, () => {
        const failures = run.results.map((result) => (result as CasesResult)?.failures[name]);
        expect(failures, run.output).toEqual(run.results.map(() => null));
      });
    }

    it('gives the bits that ranks in memory get, and ends well', async () => {
      const groups = createMemoryGroup(worldSize);
      const expected = await Promise.all(groups.map(transcriptHash));
      expect(run.results.map((result) => (result as CasesResult)?.hash)).toEqual(expected);
      expect(run.exitCode, run.output).toBe(0);
    });
  });
});

/** Of program `cases`. */
interface CasesResult {
  readonly failures: Readonly<Record<string, string | null>>;
  readonly hash: number;
}
