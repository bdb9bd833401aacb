// The mpi transport gets more elements than MPI's own counts can express. The test takes 5 GB of
// memory.

import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { MpiProgram, mpiProblem } from './support/mpirun.js';

const problem = mpiProblem();

describe.skipIf(problem !== undefined)(
  `ranks under mpirun${problem ? ` (${problem})` : ''}`,
  () => {
    let program: MpiProgram;

    beforeAll(async () => {
      program = new MpiProgram();
      await program.build('mpi-rank.ts');
    });

    afterAll(() => program?.[Symbol.dispose]());

    it('gather beyond 2 GiB, by messages', async () => {
      const { resultsOf, output } = await program.run(2, 'huge');
      const whole = [
        [1, 1],
        [2, 2],
      ];
      expect(resultsOf('huge'), output).toEqual([whole, whole]);
    }, 180_000);
  },
);
