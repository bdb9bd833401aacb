// When the store fails, optimizer.step() happened or it did not, a retry finishes what is missing,
// and no half step is committed.

import { loadStateDict, stateDict } from '@shardweave/nn';
import { createHostStore, type ShardStore } from '@shardweave/shard-store';
import { describe, expect, it } from 'vitest';
import { begin, type Run } from './support/linear-layers.js';

/**
 * Makes a store whose calls of a method reject from the `position`-th on, `count` times. With -1
 * none does.
 */
function unreliableStore(method: 'read' | 'write') {
  const store = createHostStore();
  const failing = { position: -1, count: 1, numCalls: 0 };
  // biome-ignore lint/suspicious/noExplicitAny: either method
  const original = (store[method] as any).bind(store);
  Object.assign(store, {
    [method]: (...args: unknown[]) => {
      const call = failing.numCalls++;
      const { position, count } = failing;
      const isFailing = position >= 0 && call >= position && call < position + count;
      return isFailing ? Promise.reject(new Error('no disk')) : original(...args);
    },
  });
  const fail = (position: number, count = 1) =>
    Object.assign(failing, { position, count, numCalls: 0 });
  return { store: store as ShardStore, failing, fail };
}

/**
 * Trains two steps, a third whose optimizer meets a failing store and which `then` continues, and
 * two more.
 */
async function interrupted(
  method: 'read' | 'write',
  position: number,
  then: (run: Run) => Promise<void>,
  count = 1,
) {
  const { store, fail } = unreliableStore(method);
  const run = begin({ store });
  const found = await run.losses(2);
  found.push(await run.backward(2));
  fail(position, count);
  await expect(run.optimizer.step()).rejects.toThrow('no disk');
  fail(-1);
  await then(run);
  run.optimizer.zeroGrad();
  for (const step of [3, 4]) {
    found.push(await run.trainStep(step));
  }
  return { run, losses: found };
}

/** Returns the step counts in the optimizer's state of all parameters. */
async function stepCounts({ model, optimizer }: Run): Promise<Set<number>> {
  const { state } = await optimizer.stateDict(model.namedParameters());
  return new Set([...state.values()].map(({ step }) => step));
}

const retry = async ({ optimizer }: Run) => optimizer.step();

describe('a store that refuses a write in optimizer.step()', () => {
  it.each([0, 7, 15])('write %i: a retry finishes the step, once', async (position) => {
    const expected = await begin().losses(5);
    expect((await interrupted('write', position, retry)).losses).toEqual(expected);
  });

  it.each([0, 7, 15])(
    'write %i: flush() puts the step at rest, and it is not taken again',
    async (position) => {
      const { store, fail } = unreliableStore('write');
      const run = begin({ store });
      const found = await run.losses(2);
      found.push(await run.backward(2));
      fail(position, 3);
      await expect(run.optimizer.step()).rejects.toThrow('no disk');
      fail(-1);
      const before = store.generation;
      await run.model.flush();
      expect(store.generation).toBe(before + 2); // The step and the flush make a generation each.
      run.model.dispose();
      const resumed = begin({ store, resume: true });
      for (const step of [3, 4]) {
        found.push(await resumed.trainStep(step));
      }
      expect(found).toEqual(await begin().losses(5));
    },
  );

  it('a flush that lacks room still rejects, and loses nothing', async () => {
    const { store, fail } = unreliableStore('write');
    const run = begin({ store });
    const found = await run.losses(2);
    found.push(await run.backward(2));
    fail(0, 1000);
    await expect(run.optimizer.step()).rejects.toThrow('no disk');
    await expect(run.model.flush()).rejects.toThrow('no disk');
    fail(-1);
    await run.model.flush();
    run.optimizer.zeroGrad();
    for (const step of [3, 4]) {
      found.push(await run.trainStep(step));
    }
    expect(found).toEqual(await begin().losses(5));
  });

  it('flush() also writes what a load had no room for', async () => {
    const { store, fail } = unreliableStore('write');
    const run = begin({ store });
    await run.losses(1);
    const state = await stateDict(run.model);
    const [name, entry] = [...state][0]!;
    const data = entry.data.map((byte) => byte ^ 1);
    fail(0);
    const loading = loadStateDict(run.model, new Map([[name, { ...entry, data }]]), {
      strict: false,
    });
    await expect(loading).rejects.toThrow('no disk');
    fail(-1);
    await run.model.flush();
    run.model.dispose();
    const resumed = begin({ store, resume: true });
    expect((await stateDict(resumed.model)).get(name)!.data).toEqual(data);
  });

  it('gives back its host buffers', async () => {
    const { run } = await interrupted('write', 7, async () => {});
    expect(run.model.hostMemory().stagingBytes).toBe(0);
  });
});

describe('a store that fails to read in optimizer.step()', () => {
  it('read 1: before anything is stepped, a retry takes the step', async () => {
    expect((await interrupted('read', 1, retry)).losses).toEqual(await begin().losses(5));
  });

  it.each([5, 9, 14])('read %i: a retry finishes the step, once', async (position) => {
    const expected = await begin().losses(5);
    expect((await interrupted('read', position, retry)).losses).toEqual(expected);
  });

  it('read 9: all parameters have seen the same steps', async () => {
    let counts = new Set<number>();
    await interrupted('read', 9, async (run) => {
      counts = await stepCounts(run);
    });
    expect(counts.size).toBe(1);
  });

  it('read 9: a commit without a retry is refused, or has no part of the step', async () => {
    const { store, fail } = unreliableStore('read');
    const run = begin({ store });
    await run.losses(2);
    await run.backward(2);
    fail(9);
    await expect(run.optimizer.step()).rejects.toThrow('no disk');
    fail(-1);
    const isCommitted = await run.model.commit().then(
      () => true,
      () => false,
    );
    if (!isCommitted) {
      return;
    }
    run.model.dispose();
    const resumed = begin({ store, resume: true });
    expect((await stepCounts(resumed)).size).toBe(1);
  });

  it.each([1, 9, 14])('read %i: gives back its host buffers', async (position) => {
    const { run } = await interrupted('read', position, async () => {});
    expect(run.model.hostMemory().stagingBytes).toBe(0);
    expect(run.device.memory().live).toMatchObject({ parameter: 0, gradient: 0, optimizer: 0 });
  });
});
