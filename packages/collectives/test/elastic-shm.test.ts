// An elastic job over shared memory, all of whose members are in this thread.
// elastic-threads.test.ts ends real threads.

import { setImmediate as nextTurn } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import {
  type Departure,
  joinElasticShm,
  type Member,
  ShmElasticJob,
  type ShmElasticOptions,
} from '@shardweave/collectives/elastic';
import { createShmJob } from '@shardweave/collectives/shm';
import { afterEach, describe, expect, it } from 'vitest';
import { letGo } from '../src/transports/shm/elastic/let-go.js';
import { begin, elasticSuite, sums } from './support/elastic-suite.js';

/** What a rank holds in the block of an epoch. Twelve are more than the engine's heap grows by. */
const HELD_BYTES = 16 * 2 ** 20;

const toEnd: (() => unknown)[] = [];

afterEach(async () => {
  for (const end of toEnd.splice(0).reverse()) {
    await end();
  }
});

function newJob(options: Partial<ShmElasticOptions> = {}) {
  const job = new ShmElasticJob({ min: 1, max: 4, settleMs: 50, ...options });
  toEnd.push(() => job.close());
  return { job, join: () => join(job) };
}

async function join(job: ShmElasticJob): Promise<Member> {
  const member = await joinElasticShm(job.invite());
  toEnd.push(() => member.leave());
  return member;
}

describe('an elastic job over shared memory', () => {
  elasticSuite(async (range) => newJob(range));

  it('has a block of memory an epoch, of its size, and lets go of the one before', async () => {
    const { job, join } = newJob({ min: 2, settleMs: 0 });
    const staying = [await join(), await join()];
    let epochs = await begin(staying);
    await collectGarbage();
    const { rss } = process.memoryUsage();
    let newcomer: Member | undefined;
    for (let step = 1; step <= 30; step++) {
      if (newcomer === undefined) {
        newcomer = await joinElasticShm(job.invite());
        const entering = newcomer.reform({ step: 0 });
        while (!staying.every(({ isChangeDue }) => isChangeDue)) {
          await sums(epochs);
        }
        epochs = await Promise.all([...staying.map((one) => one.reform({ step })), entering]);
        expect(await sums(epochs)).toEqual([6, 6, 6]);
      } else {
        await newcomer.leave();
        newcomer = undefined;
        epochs = await begin(staying, step);
        expect(await sums(epochs)).toEqual([3, 3]);
      }
      const held = epochs[0]!.group.allocate(HELD_BYTES);
      expect([held[0], held.at(-1)]).toEqual([0, 0]);
      held.fill(1);
    }
    await collectGarbage();
    expect(job.status).toMatchObject({ epoch: 31, members: [0, 1] });
    expect(process.memoryUsage().rss - rss).toBeLessThan(12 * HELD_BYTES);
  });
});

describe('of threads that say that they are at an edge', () => {
  it('one that then answers nobody is left out, and the others go on', async () => {
    const { job, join } = newJob({ min: 2, max: 3, linkMs: 200 });
    const members = [await join(), await join()];
    const { port, heard } = rawMember(job);
    port.postMessage({ type: 'edge', epoch: 0, hasState: false, step: 0, note: '' });
    const epochs = await begin(members);
    expect(epochs[0]).toMatchObject({ number: 2, joined: [0, 1] });
    expect(await sums(epochs)).toEqual([3, 3]);
    expect(heard.map(({ told }) => told?.type)).toEqual([undefined, 'welcome', 'table', 'fenced']);
  });

  it('one that ends is lost at once, and the others go on', async () => {
    const gone: Departure[] = [];
    const { job, join } = newJob({
      min: 2,
      max: 3,
      onChange: (change) => gone.push(...change.gone),
    });
    const members = [await join(), await join()];
    const { port, heard } = rawMember(job);
    port.postMessage({ type: 'edge', epoch: 0, hasState: false, step: 0, note: '' });
    port.addEventListener('message', () => heard.at(-1)!.block && port.close());
    const epochs = await begin(members);
    expect(epochs[0]).toMatchObject({ number: 2, joined: [0, 1] });
    expect(gone).toEqual([{ id: 2, how: 'lost', reason: 'its thread has ended' }]);
  });
});

it('a job that is closed is over for all, with the reason, and for who comes later', async () => {
  const { job, join } = newJob();
  const member = await join();
  const early = job.invite();
  await begin([member]);
  job.close('everything is done');
  const over = { code: 'MEMBERSHIP', kind: 'ended', reason: 'everything is done' };
  await expect(member.reform({ step: 1 })).rejects.toMatchObject(over);
  await expect(joinElasticShm(early)).rejects.toMatchObject(over);
  await expect(join()).rejects.toMatchObject({ kind: 'ended' });
  expect(job.status.phase).toBe('ended');
});

it('a job that gets no memory for an epoch ends, with the reason', async () => {
  const { join } = newJob({ min: 32, max: 32, ringBytes: 2 ** 30 });
  const members = await Promise.all(Array.from({ length: 32 }, join));
  for (const outcome of await Promise.allSettled(members.map((one) => one.reform({ step: 0 })))) {
    const reason = expect.stringContaining('no memory for 32 members: ');
    expect(outcome).toMatchObject({ reason: { kind: 'ended', reason } });
  }
});

it.each([
  [{ min: 0 }, RangeError, 'expected 1 <= min <= max, got min 0 and max 4'],
  [{ min: 5 }, RangeError, 'got min 5 and max 4'],
  [{ max: Number.NaN }, RangeError, 'got min 1 and max NaN'],
  [{ ringBytes: 1000 }, RangeError, 'expected ringBytes to be a power of two'],
])('a job with %j is refused', (options, kind, message) => {
  expect(() => newJob(options)).toThrow(kind);
  expect(() => newJob(options)).toThrow(message);
});

it('a member with options that no group takes is refused', async () => {
  const { job } = newJob();
  const options = { timeoutMs: -1 };
  await expect(joinElasticShm(job.invite(), options)).rejects.toMatchObject({ code: 'USAGE' });
});

it.each([
  ['of its bytes', 256, 16],
  ['of 256 MiB where it has more', 8192, 256],
])('the engine is told of a block that is let go of, %s', async (_, pages, mib) => {
  const [block] = createShmJob(1);
  block!.heap!.grow(pages); // Nobody touches them, so they take no memory.
  await collectGarbage();
  const { arrayBuffers } = process.memoryUsage();
  letGo(block!);
  const told = (process.memoryUsage().arrayBuffers - arrayBuffers) / 2 ** 20;
  // The engine may free some small block of its own meanwhile: 45 bytes were seen.
  expect(told).toBeGreaterThan(mib - 2 ** -10);
  expect(told).toBeLessThan(mib + 1);
});

/** Somebody who has come, and does nothing by itself. */
function rawMember(job: ShmElasticJob) {
  const heard: { told?: { type: string }; block?: unknown }[] = [];
  const port = job.invite().ports[0]!;
  port.addEventListener('message', ({ data }) => heard.push(data));
  port.start();
  port.postMessage({ type: 'here', address: null });
  return { port, heard };
}

/** Frees what nothing refers to. */
async function collectGarbage(): Promise<void> {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  for (let i = 0; i < 3; i++) {
    await nextTurn(); // what this turn looked at through a WeakRef is kept for it
    collect();
  }
}
