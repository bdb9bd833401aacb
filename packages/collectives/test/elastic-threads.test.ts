// Threads of an elastic job over shared memory end in every way, come and leave, and the job goes
// on: each step has one state, whoever did it.

import { once } from 'node:events';
import { join } from 'node:path';
import { type Transferable, Worker } from 'node:worker_threads';
import { type Departure, ShmElasticJob } from '@shardweave/collectives/elastic';
import { afterEach, beforeAll, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { bundleProgram } from './support/bundle-program.js';
import { atWork, checkStates, ElasticSpeaker } from './support/elastic-job.js';
import type { ThreadOrder } from './support/elastic-thread.js';

const script = join(newFolder(), 'elastic-thread.mjs');
const running: ElasticThread[] = [];

beforeAll(async () => {
  await bundleProgram(new URL('support/elastic-thread.ts', import.meta.url), script);
});

afterEach(async () => {
  await Promise.all(running.splice(0).map((thread) => thread.terminate()));
});

class ElasticThread extends ElasticSpeaker {
  readonly #worker: Worker;
  /** Resolves when it has ended, with its uncaught error. */
  readonly ended: Promise<Error | undefined>;

  constructor(job: ShmElasticJob) {
    super();
    const workerData = job.invite();
    this.#worker = new Worker(script, {
      workerData,
      transferList: workerData.ports as unknown as Transferable[], // the page's type, by name
      execArgv: [],
      resourceLimits: { maxOldGenerationSizeMb: 40 },
    });
    let failure: Error | undefined;
    this.#worker.on('error', (error) => {
      failure = error;
    });
    this.#worker.on('message', (word) => this.heard(word));
    this.ended = once(this.#worker, 'exit').then(
      () => failure,
      (error) => error,
    );
    running.push(this);
  }

  order(order: ThreadOrder): void {
    this.#worker.postMessage(order);
  }

  async terminate(): Promise<void> {
    await this.#worker.terminate();
  }
}

it('goes on when threads end in any way, one comes, and one leaves, and nothing stays', async () => {
  const gone: Departure[] = [];
  const job = new ShmElasticJob({
    ...{ min: 1, max: 8, settleMs: 300 },
    onChange: (change) => gone.push(...change.gone),
  });
  const threads = Array.from({ length: 5 }, () => new ElasticThread(job));
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
  const newcomer = new ElasticThread(job);
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
