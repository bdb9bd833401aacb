// A member of an elastic job as a thread, bundled and started by elastic-threads.test.ts. It does
// steps until it is told to leave, or to end in some other way.

import { parentPort, workerData } from 'node:worker_threads';
import { joinElasticShm, type ShmMemberHandle } from '@shardweave/collectives/elastic';
import { ElasticCounting, type ElasticWord, failedWord, type Unstamped } from './elastic-member.js';

export type ThreadOrder = 'leave' | 'exit' | 'throw' | 'exhaust';

/** What a thread has in the memory of an epoch. */
const HELD_BYTES = 8 * 2 ** 20;

const port = parentPort!;

function say(word: Unstamped<ElasticWord>): void {
  port.postMessage({ ...word, atMs: Date.now() });
}

/** Takes memory until the thread has none. */
function exhaust(): never {
  for (const taken: unknown[] = []; ; ) {
    taken.push(new Array(1_000_000).fill(0.5));
  }
}

async function main(): Promise<void> {
  const member = await joinElasticShm(workerData as ShmMemberHandle);
  const elastic = new ElasticCounting(member, say, ({ group }) => {
    group.allocate(HELD_BYTES).fill(1);
  });
  const orders: Readonly<Record<ThreadOrder, () => void>> = {
    leave: () => elastic.leave(),
    exit: () => process.exit(),
    throw: () => {
      throw new Error('on purpose');
    },
    exhaust,
  };
  port.on('message', (order: ThreadOrder) => orders[order]());
  port.unref(); // a member alone keeps the thread alive
  await elastic.run();
}

main().catch((error: unknown) => say(failedWord(error)));
