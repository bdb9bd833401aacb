// Fifty runs are killed at moments drawn from a seed, half of them while a save is being written.

import { beforeAll, describe, it } from 'vitest';
import { splitMix32 } from '../src/seeded-random.js';
import { buildCommand } from './support/build-command.js';
import { expectExactResume, WAYS } from './support/expect-exact-resume.js';
import type { Moment } from './support/killed-run.js';

const NUM_KILLS = 50;

let script: string;
beforeAll(async () => {
  script = await buildCommand('killed-runs-long');
});

describe('a run that is killed goes on bit for bit', () => {
  it.each(WAYS.map((way, i) => [way, i] as const))('%s', { timeout: 600_000 }, async (way, i) => {
    const random = splitMix32(1, i);
    const below = (end: number) => random() % end;
    const count = Math.ceil((NUM_KILLS - i) / WAYS.length);
    const moments = Array.from({ length: count }, (_, kill): Moment => {
      const step = 3 + below(7); // By then the first save is whole.
      // The files of a save are the pieces of each rank and the index.
      return kill % 2 === 0 ? { step } : { savingFrom: step, numFiles: below(3) };
    });
    await expectExactResume(script, way, moments);
  });
});
