// What the shm test page offers to the test that drives it: `window.shmPage`.

import type { CollectiveError } from '@shardweave/collectives';
import { createShmJob } from '@shardweave/collectives/shm';
import { conformanceCases, STOP_CASE } from '@shardweave/collectives/testing';
import type { Order, Reply } from './shm-worker.ts';

declare global {
  interface Window {
    shmPage: typeof shmPage;
  }
}

const shmPage = { runConformance, endOne, whyNot };
window.shmPage = shmPage;

/** Runs the suite with one web worker for each rank. Returns which cases failed, and how. */
async function runConformance(worldSize: number) {
  const workers = startWorkers(worldSize);
  const cases = conformanceCases.filter(
    // Workers are stopped together with their page, so this case is not for pages.
    ({ name, worldSizes }) => worldSizes.includes(worldSize) && name !== STOP_CASE,
  );
  const failed: string[] = [];
  for (const { name } of cases) {
    const endings = await runAll(workers, { type: 'case', name, worldSize });
    for (const ending of endings) {
      if (ending.type !== 'done' || ending.failure !== undefined) {
        failed.push(`${name}: ${JSON.stringify(ending)}`);
      }
    }
  }
  for (const worker of workers) {
    worker.terminate();
  }
  return { numCases: cases.length, failed };
}

/**
 * Ends the last of three workers in the middle of its work. Returns what the others report, and
 * after how much time.
 */
async function endOne() {
  const workers = startWorkers(3);
  const handles = createShmJob(3);
  const survivors = workers.slice(0, 2).map((worker) => reply(worker, 'ended'));
  const running = workers.map((worker) => reply(worker, 'running'));
  await Promise.all(
    workers.map(async (worker, rank) => {
      const asked = reply(worker, 'handle');
      worker.postMessage({ type: 'gather' } satisfies Order);
      await asked;
      worker.postMessage(handles[rank], handles[rank]!.ports);
    }),
  );
  await Promise.all(running);
  workers[2]!.terminate();
  const endings = await Promise.all(survivors);
  for (const worker of workers) {
    worker.terminate();
  }
  return endings;
}

/** What a page that cannot share memory is told. */
function whyNot(): { code: string; message: string } | undefined {
  try {
    createShmJob(2);
    return undefined;
  } catch (error) {
    const { code, message } = error as CollectiveError;
    return { code, message };
  }
}

function startWorkers(count: number): Worker[] {
  return Array.from({ length: count }, () => new Worker('/shm-worker.js', { type: 'module' }));
}

/** Sends an order to all workers. Each one that asks for a handle gets one of the same job. */
function runAll(workers: readonly Worker[], order: Order): Promise<Reply[]> {
  const handles = createShmJob(workers.length);
  return Promise.all(
    workers.map(async (worker, rank) => {
      const first = reply(worker, 'handle', 'done');
      worker.postMessage(order);
      const asked = await first;
      if (asked.type === 'done') {
        return asked;
      }
      const done = reply(worker, 'done');
      worker.postMessage(handles[rank], handles[rank]!.ports);
      return done;
    }),
  );
}

function reply(worker: Worker, ...types: readonly Reply['type'][]): Promise<Reply> {
  return new Promise((resolve) => {
    const onMessage = ({ data }: MessageEvent<Reply>) => {
      if (types.includes(data.type)) {
        worker.removeEventListener('message', onMessage);
        resolve(data);
      }
    };
    worker.addEventListener('message', onMessage);
  });
}
