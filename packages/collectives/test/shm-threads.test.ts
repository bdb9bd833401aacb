// Ranks are real threads over shm here. The tests cover the conformance suite again, threads that
// end in every way, and what happens only where ranks run at the same time.

import { once } from 'node:events';
import { join } from 'node:path';
import { type Transferable, Worker } from 'node:worker_threads';
import { createShmJob, type ShmJobOptions } from '@shardweave/collectives/shm';
import { conformanceCases } from '@shardweave/collectives/testing';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { bundleProgram } from './support/bundle-program.js';
import { shmSkips } from './support/shm-harness.js';
import type { Ending, ThreadOptions } from './support/shm-thread.js';

const folder = newFolder();
const script = join(folder, 'thread.mjs');
const running: Worker[] = [];

beforeAll(async () => {
  await bundleProgram(new URL('support/shm-thread.ts', import.meta.url), script);
});

afterEach(async () => {
  await Promise.all(running.splice(0).map((worker) => worker.terminate()));
});

/** Starts a thread for each rank, each with its handle. */
function startAll(
  worldSize: number,
  options: Omit<ThreadOptions, 'handle'>,
  jobOptions?: ShmJobOptions,
): Worker[] {
  const workers = createShmJob(worldSize, jobOptions).map((handle) => {
    return startThread(script, { ...options, handle });
  });
  running.push(...workers);
  return workers;
}

function startThread(file: string, workerData: ThreadOptions): Worker {
  // Node's own type of a port differs from the DOM's, which handles have.
  const transferList = workerData.handle.ports as unknown as Transferable[];
  return new Worker(file, { workerData, transferList, execArgv: [] });
}

/** Resolves with what a thread says at its end, once it has ended by itself. */
async function endingOf(worker: Worker): Promise<Ending> {
  const exited = once(worker, 'exit');
  const ending = await nextMessage(worker, (message) => message !== 'running');
  await exited; // Nothing is left that keeps the thread alive.
  return ending as Ending;
}

function nextMessage(worker: Worker, isWanted = (_: unknown) => true): Promise<unknown> {
  return new Promise((resolve, reject) => {
    const onMessage = (message: unknown) => {
      if (isWanted(message)) {
        worker.off('message', onMessage);
        worker.off('error', reject);
        resolve(message);
      }
    };
    worker.on('message', onMessage);
    worker.once('error', reject);
  });
}

async function runAll(
  worldSize: number,
  program: ThreadOptions['program'],
  jobOptions?: ShmJobOptions,
): Promise<unknown[]> {
  const endings = await Promise.all(startAll(worldSize, { program }, jobOptions).map(endingOf));
  for (const ending of endings) {
    expect(ending).toHaveProperty('result');
  }
  return endings.map(({ result }) => result);
}

/** Further tests below have registered memory, of which the whole suite takes as long again. */
const SUITES = [
  { worldSize: 3, memory: 'plain' },
  { worldSize: 2, memory: 'plain' },
  { worldSize: 3, memory: 'registered' },
];

describe.each(process.env.SHARDWEAVE_LONG === '1' ? SUITES : SUITES.slice(0, 1))(
  'the conformance suite on $worldSize threads, $memory memory',
  ({ worldSize, memory }) => {
    let workers: Worker[];

    beforeAll(() => {
      workers = startAll(worldSize, { program: 'cases', isRegistered: memory === 'registered' });
      running.length = 0; // The first case's cleanup must not end these threads.
    });

    afterAll(async () => {
      await Promise.all(workers.map((worker) => worker.terminate()));
    });

    const cases = conformanceCases.filter(({ worldSizes }) => worldSizes.includes(worldSize));
    for (const { name } of cases) {
      const reason = shmSkips[name];
      const title = reason === undefined ? name : `${name} (${reason})`;
      it.skipIf(reason !== undefined)(title, async () => {
        expect(await runCase(workers, name)).toEqual(workers.map(() => undefined));
      });
    }
  },
);

/** Runs a case on all threads. Each thread that asks for a handle gets one of the next job. */
async function runCase(workers: readonly Worker[], name: string): Promise<unknown[]> {
  const worldSize = workers.length;
  const handles = createShmJob(worldSize);
  const failures = workers.map(async (worker, rank) => {
    const request = await nextMessage(worker);
    if (request !== 'handle') {
      return request;
    }
    const ending = nextMessage(worker);
    worker.postMessage(handles[rank], handles[rank]!.ports as unknown as Transferable[]);
    return ((await ending) as { failure: unknown }).failure;
  });
  for (const worker of workers) {
    worker.postMessage([name, worldSize]);
  }
  return Promise.all(failures);
}

describe('threads over shm', () => {
  it.each(['terminate', 'exit', 'throw', 'return'] as const)(
    'name the rank whose thread ends by %s',
    async (ending) => {
      const worldSize = 3;
      const victim = worldSize - 1;
      const workers = startAll(worldSize, {
        program: 'gather',
        ending: ending === 'terminate' ? 'wait' : ending,
      });
      workers[victim]!.on('error', () => {}); // With 'throw', the error is expected.
      const endings = workers.slice(0, victim).map(endingOf);
      if (ending === 'terminate') {
        await Promise.all(workers.map((worker) => nextMessage(worker, (m) => m === 'running')));
        await workers[victim]!.terminate();
      }
      for (const survivor of await Promise.all(endings)) {
        expect(survivor).toMatchObject({ code: 'PEER_LOST', originRank: victim });
        expect(survivor.message).toMatch(/allGather #\d+: peer 2 lost/);
      }
    },
  );

  it('say at once who ended before all had joined', async () => {
    const handles = createShmJob(3);
    const start = (rank: number) => {
      const worker = startThread(script, {
        program: 'late',
        ending: 'exit',
        handle: handles[rank]!,
      });
      running.push(worker);
      return worker;
    };
    await once(start(2), 'exit');
    for (const ending of await Promise.all([endingOf(start(0)), endingOf(start(1))])) {
      expect(ending).toMatchObject({ code: 'JOIN' });
      expect(ending.message).toMatch(/the thread of rank \d ended before all ranks had joined/);
    }
  });

  it('wait for a rank that computes without a turn of its event loop', async () => {
    expect(await runAll(2, 'busy')).toEqual([
      [0, 0, 0, 0, 1, 1, 1, 1],
      [0, 0, 0, 0, 1, 1, 1, 1],
    ]);
  });

  it('wait for a late rank with nothing else to keep them alive, and end by themselves', async () => {
    expect(await runAll(3, 'late')).toEqual(['met', 'met', 'met']);
  });

  it.each([
    ['by Atomics.waitAsync', false],
    ['by messages where there is no waitAsync', true],
  ])('are always woken, %s', async (_, hasNoWaitAsync) => {
    const workers = startAll(2, { program: 'chatter', hasNoWaitAsync });
    const done = { result: 'done' };
    expect(await Promise.all(workers.map(endingOf))).toEqual([done, done]);
  });

  it('read registered memory while its owner computes', async () => {
    const received = new SharedArrayBuffer(4);
    const endings = startAll(2, { program: 'lend', received }).map(endingOf);
    expect(await Promise.all(endings)).toEqual([{ result: true }, { result: true }]);
  });

  it('see registered inputs as they were, though they change as soon as a call settles', async () => {
    for (const result of await runAll(3, 'overwrite')) {
      expect(result).toEqual({ numWrong: 0, last: true });
    }
  });

  it('lose nothing where far more is sent than a ring holds', async () => {
    expect(await runAll(2, 'flood', { ringBytes: 16 * 1024 })).toEqual([0, 0]);
  });
});
