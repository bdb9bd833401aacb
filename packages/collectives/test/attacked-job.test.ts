// A job forms under the attacks of strangers, and when it has formed there is nothing left to
// attack. The most expensive attacks are here, attacked-job.long.test.ts has all. Times are printed
// and decide nothing, since the attackers share the machine with the job; what decides is rank 0's
// memory and processor time.

import { connect } from 'node:net';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { AttackedJob, bundleAttackedRank } from './support/attacked-job.js';
import { ATTACKS } from './support/attacks.js';
import { expectBearable, formUnder } from './support/form-under.js';
import { listeningPorts, listeningProblem } from './support/listening-ports.js';

const WORST = [
  'pipelined requests without end, 50 connections',
  'one post in chunks of a byte, 76 connections',
  'idle connections, 400 and then 15 a second',
  'messages without end behind a refusal, 8 connections',
];

let rank: Awaited<ReturnType<typeof bundleAttackedRank>>;

beforeAll(async () => {
  rank = await bundleAttackedRank();
});

afterAll(() => rank.remove());

describe('a job that forms', () => {
  it.each(WORST)('a job forms under %s', async (name) => {
    expectBearable(await formUnder(name, ATTACKS[name]!, rank.program));
  });
});

describe('a job that trains', () => {
  it.skipIf(listeningProblem() !== undefined)(
    `listens nowhere${listeningProblem() ?? ''}`,
    async () => {
      await using job = await AttackedJob.begin(rank.program);
      expect(listeningPorts(job.pids)).toContain(job.port);
      await job.form();
      const { numSteps: before } = await job.costs();
      expect(listeningPorts(job.pids)).toEqual([]);
      const refused = new Promise<string>((resolve) => {
        connect(job.port, '127.0.0.1').on('error', ({ code }: NodeJS.ErrnoException) => {
          resolve(code!);
        });
      });
      expect(await refused).toBe('ECONNREFUSED');
      while ((await job.costs()).numSteps < before + 3) {
        // Each look takes a turn of rank 0.
      }
      await job.end();
    },
  );
});
