// The mpi transport runs under a real mpirun. The tests cover the conformance suite, bits equal to
// the other transports', and the ways in which processes end.

import { createMemoryGroup } from '@shardweave/collectives';
import { conformanceCases, transcriptHash } from '@shardweave/collectives/testing';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { mpiSkips } from './support/mpi-skips.js';
import { MpiProgram, type MpirunResult, mpiProblem } from './support/mpirun.js';
import { reversedTranscript } from './support/reversed-transcript.js';

/**
 * Other numbers than three run only in the long run: what they show and three don't is not specific
 * to a transport, and other transports run it.
 */
const isLong = process.env.SHARDWEAVE_LONG === '1';
const WORLD_SIZES = isLong ? [1, 2, 3, 4, 8] : [3];
/**
 * The programs for each world size. All of them run in one start of mpirun, which takes seconds on
 * a busy machine.
 */
const PROGRAMS: Readonly<Record<number, readonly string[]>> = {
  2: isLong ? ['cases', 'refusals'] : ['refusals'],
  3: ['reversed', 'native', 'cases'],
};
const problem = mpiProblem();
const suffix = problem === undefined ? '' : ` (${problem})`;

describe.skipIf(problem !== undefined)(`ranks under mpirun${suffix}`, () => {
  let program: MpiProgram;
  const runs = new Map<number, Promise<MpirunResult>>();
  const runOf = (worldSize: number) => {
    const run =
      runs.get(worldSize) ?? program.run(worldSize, ...(PROGRAMS[worldSize] ?? ['cases']));
    runs.set(worldSize, run);
    return run;
  };
  /** The result of the `stuck` program, which mostly waits and so runs beside the others. */
  let stuck: Promise<MpirunResult>;

  beforeAll(async () => {
    program = new MpiProgram();
    await program.build('mpi-rank.ts');
    stuck = program.run(2, 'stuck');
  });

  afterAll(() => program?.[Symbol.dispose]());

  describe.each(WORLD_SIZES)('the conformance suite on %i ranks', (worldSize) => {
    let run: MpirunResult;

    beforeAll(async () => {
      run = await runOf(worldSize);
    }, 120_000);

    const cases = conformanceCases.filter(({ worldSizes }) => worldSizes.includes(worldSize));
    for (const { name } of cases) {
      const reason = mpiSkips[name];
      const title = reason === undefined ? name : `${name} (${reason})`;
      it.skipIf(reason !== undefined)(title, () => {
        const results = run.resultsOf('cases');
        const failures = results.map((result) => (result as CasesResult)?.failures?.[name]);
        expect(failures, run.output).toEqual(results.map(() => null));
      });
    }

    it('gives the bits that ranks in memory get, and ends well', async () => {
      const groups = createMemoryGroup(worldSize);
      const expected = await Promise.all(groups.map(transcriptHash));
      const hashes = run.resultsOf('cases').map((result) => (result as CasesResult)?.hash);
      expect(hashes).toEqual(expected);
      expect(run.exitCode, run.output).toBe(0);
    });
  });

  it("keeps to the order of a group whose ranks are not in MPI's", async () => {
    const { resultsOf, output } = await runOf(3);
    const groups = createMemoryGroup(3);
    expect(resultsOf('reversed'), output).toEqual(
      await Promise.all(groups.map(reversedTranscript)),
    );
  });

  it("sums by MPI's own all-reduce where that is asked for", async () => {
    const { resultsOf, output } = await runOf(3);
    const results = resultsOf('native');
    const [first] = results as readonly { readonly worst: number; readonly mean: number }[];
    expect(results, output).toEqual([first, first, first]);
    // The whole buffer counts as sent once; our own algorithm would send 4/3 of it.
    const mean = Math.fround(999 / 7 + 1); // MPI has no mean, so this package divides.
    expect(first).toMatchObject({ bytesSent: 4_400_012, max: 2997, min: 999 });
    expect(Math.abs(first!.mean - mean)).toBeLessThan(1e-4);
    expect(first!.worst).toBeLessThan(3 * 2 ** -24);
  });

  it('refuses to join where it must fail, with a sentence', async () => {
    const { resultsOf, output } = await runOf(2);
    for (const said of resultsOf('refusals')) {
      expect(said, output).toEqual([
        expect.stringMatching(/^JOIN: .*no MPI library was found \(tried libnothing\.so\)/),
        expect.stringMatching(/^JOIN: .*MPI has ended in this process/),
        expect.stringMatching(/^JOIN: .*MPI has ended in this process/),
      ]);
    }
  });

  it('lets a process end though another rank is stuck', async () => {
    const { resultsOf, exitCode, output } = await stuck;
    expect(resultsOf('stuck'), output).toEqual(['ABORTED', undefined]);
    expect(exitCode).toBe(3);
  });
});

/** The output of the program `cases`. */
interface CasesResult {
  readonly failures: Readonly<Record<string, string | null>>;
  readonly hash: number;
}
