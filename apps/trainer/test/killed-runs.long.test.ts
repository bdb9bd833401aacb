// Fifty runs are killed at moments drawn from a seed, half of them while a save is being written,
// and each transport's at all moments of a life.

import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { splitMix32 } from '../src/seeded-random.js';
import { buildCommand } from './support/build-command.js';
import { expectExactResume, WAYS } from './support/expect-exact-resume.js';
import { type Ended, endOf, expectSameEnd, LIFE, lifeFlags } from './support/expect-same-end.js';
import { finishRun, type StepMoment } from './support/killed-run.js';

const NUM_KILLS = 50;

let script: string;
beforeAll(async () => {
  script = await buildCommand();
});

describe('a run that is killed goes on bit for bit', () => {
  it.each(WAYS.map((way, i) => [way, i] as const))('%s', { timeout: 600_000 }, async (way, i) => {
    const random = splitMix32(1, i);
    const below = (end: number) => random() % end;
    const count = Math.ceil((NUM_KILLS - i) / WAYS.length);
    const moments = Array.from({ length: count }, (_, kill): StepMoment => {
      const step = 3 + below(7); // By then the first save is whole.
      // The files of a save are the pieces of each rank and the index.
      return kill % 2 === 0 ? { step } : { savingFrom: step, numFiles: below(3) };
    });
    await expectExactResume(script, way, moments);
  });
});

const hasMpirun = spawnSync('mpirun', ['--version']).error === undefined;

describe.each(['ws', 'shm', 'memory', 'mpi'])(
  'a line over %s with --resume auto, killed and given again, ends as if nobody had killed it',
  (transport) => {
    const root = newFolder();
    let whole: Ended;
    beforeAll(async () => {
      const out = join(root, 'whole');
      const { code, said } = await finishRun(script, lifeFlags(root, out, 'memory').split(' '));
      expect([code, said]).toEqual([0, '']);
      whole = endOf(out);
    });

    it.skipIf(transport === 'mpi' && !hasMpirun).each(Object.entries(LIFE))(
      '%s, unless mpirun is missing for mpi',
      { timeout: 120_000 },
      async (moment, at) => {
        const out = join(root, moment.replaceAll(' ', '-'));
        await expectSameEnd(script, lifeFlags(root, out, transport), { out, at, whole });
      },
    );
  },
);
