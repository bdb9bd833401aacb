// Threads of an elastic job over shared memory end in every way, come and leave, and the job goes
// on: each step has one state, whoever did it.

import { type Departure, ShmElasticJob } from '@shardweave/collectives/elastic';
import { afterEach, beforeAll, expect, it } from 'vitest';
import { atWork, checkStates } from './support/elastic-job.js';
import { bundleThread, ElasticThread } from './support/elastic-threads.js';

let script: string;
const running: ElasticThread[] = [];

beforeAll(async () => {
  script = await bundleThread();
});

afterEach(async () => {
  await Promise.all(running.splice(0).map((thread) => thread.terminate()));
});

function start(job: ShmElasticJob): ElasticThread {
  const thread = new ElasticThread(script, job);
  running.push(thread);
  return thread;
}

it('goes on when threads end in any way, one comes, and one leaves, and nothing stays', async () => {
  const gone: Departure[] = [];
  const job = new ShmElasticJob({
    ...{ min: 1, max: 8, settleMs: 300 },
    onChange: (change) => gone.push(...change.gone),
  });
  const threads = Array.from({ length: 5 }, () => start(job));
  const all = [...threads];
  await atWork(threads);
  for (const how of ['terminate', 'throw', 'exhaust', 'exit'] as const) {
    const victim = threads.shift()!;
    const lost = await victim.lastJoined();
    const { epoch } = job.status;
    if (how === 'terminate') {
      await victim.terminate();
    } else {
      victim.order(how);
    }
    for (const thread of threads) {
      await thread.hears('over', (word) => word.lost.includes(lost));
      await thread.hears('step', (word) => word.epoch > epoch);
    }
    const told = { id: lost, how: 'lost', reason: 'its thread has ended' };
    await expect.poll(() => gone).toEqual([told]);
    gone.length = 0;
    expect(String(await victim.ended)).toMatch(
      { terminate: /undefined/, throw: /on purpose/, exhaust: /memory limit/, exit: /undefined/ }[
        how
      ],
    );
  }
  const newcomer = start(job);
  all.push(newcomer);
  await atWork([...threads, newcomer]);
  threads[0]!.order('leave');
  expect(await threads[0]!.ended).toBeUndefined();
  await atWork([newcomer]);
  job.close('it is done');
  expect(await newcomer.hears('failed')).toMatchObject({ kind: 'ended' });
  expect(await newcomer.ended).toBeUndefined(); // Nothing is left that keeps the thread alive.
  checkStates(all);
});
