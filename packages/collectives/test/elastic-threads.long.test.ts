// A hundred threads of an elastic job are ended at seeded moments, up to all but one at once, and
// others come in their places.

import { setTimeout as delay } from 'node:timers/promises';
import { ShmElasticJob } from '@shardweave/collectives/elastic';
import { expect, it } from 'vitest';
import { SeededRandom } from '../src/testing/simulator/seeded-random.js';
import { checkStates } from './support/elastic-job.js';
import { bundleThread, ElasticThread } from './support/elastic-threads.js';

const THREADS = 4;
const LOSSES = 100;
/** The bytes that threads hold in a block: see elastic-thread.ts. */
const BLOCK_BYTES = THREADS * 8 * 2 ** 20;

it('goes on when a hundred threads end, and keeps no memory of them', async () => {
  const script = await bundleThread();
  const random = new SeededRandom(7);
  const job = new ShmElasticJob({ min: 1, max: THREADS, settleMs: 50 });
  const all: ElasticThread[] = [];
  const living: ElasticThread[] = [];
  const start = () => {
    const thread = new ElasticThread(script, job);
    all.push(thread);
    living.push(thread);
  };
  /** Waits until all that live have done a step together. */
  const untilAll = async () => {
    await expect
      .poll(() => [job.status.phase, job.status.members.length], { timeout: 60_000 })
      .toEqual(['running', living.length]);
    const { epoch } = job.status;
    await Promise.all(living.map((thread) => thread.hears('step', (word) => word.epoch >= epoch)));
  };
  try {
    for (let i = 0; i < THREADS; i++) {
      start();
    }
    await untilAll();
    const { rss } = process.memoryUsage();
    for (let numLost = 0; numLost < LOSSES; ) {
      const count = Math.min(1 + random.below(THREADS - 1), LOSSES - numLost);
      for (let i = 0; i < count; i++) {
        await delay(random.below(60)); // in a step, or while an epoch forms
        const [victim] = living.splice(random.below(living.length), 1);
        void victim!.terminate();
        numLost += 1;
      }
      for (let i = 0; i < count; i++) {
        start();
      }
      await untilAll();
    }
    checkStates(all);
    // 15 of some 150 blocks are there by then, and 110 where engines are not told of them.
    expect(process.memoryUsage().rss - rss).toBeLessThan(40 * BLOCK_BYTES);
    job.close();
    await Promise.all(living.map(({ ended }) => ended));
  } finally {
    await Promise.all(all.map((thread) => thread.terminate()));
  }
}, 600_000);
