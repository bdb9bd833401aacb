// These tests check the order in which collectives start, whatever becomes ready first, and after a
// failure.

import { createMemoryGroup, StartOrder } from '@shardweave/collectives';
import { withDelay } from '@shardweave/collectives/testing';
import { expect, it } from 'vitest';

it('starts in the order of the calls, though the last is ready first, and waits for no end', async () => {
  const order = new StartOrder(() => begun.length);
  const begun: number[] = [];
  const ready: ((input: number) => void)[] = [];
  const ends = [0, 1, 2].map((call) =>
    order.enqueue(
      new Promise<number>((resolve) => {
        ready[call] = resolve;
      }),
      async (input) => {
        begun.push(input);
        if (call === 0) {
          await new Promise((resolve) => setImmediate(resolve));
        }
        return 10 * input;
      },
    ),
  );
  for (const call of [2, 1]) {
    ready[call]!(call);
  }
  await new Promise((resolve) => setImmediate(resolve));
  expect(begun).toEqual([]);
  ready[0]!(0);
  expect(await ends[2]).toBe(20);
  expect(begun).toEqual([0, 1, 2]);
  expect(await Promise.all(ends)).toEqual([0, 10, 20]);
});

it('puts a stand-in in the place of a call without input, and goes on after any failure', async () => {
  const order = new StartOrder(() => begun.length);
  const begun: string[] = [];
  const begin = (name: string) => async (): Promise<string> => {
    begun.push(name);
    return name;
  };
  const first = order.enqueue(Promise.resolve(), begin('first'));
  const unread = order.enqueue(Promise.reject(new Error('not read')), begin('unread'), {
    failed: async () => {
      begun.push('in its place');
      throw new Error('nor that');
    },
  });
  const broken = order.enqueue(Promise.resolve(), (): Promise<string> => {
    throw new Error('broken');
  });
  const last = order.enqueue(Promise.resolve(), begin('last'));
  expect(await last).toBe('last');
  expect(await first).toBe('first');
  await expect(unread).rejects.toThrow('not read');
  await expect(broken).rejects.toThrow('broken');
  expect(begun).toEqual(['first', 'in its place', 'last']);
});

it('an input that fails while an earlier one is still awaited is rejected to its caller alone', async () => {
  const order = new StartOrder(() => 0);
  const unhandled: unknown[] = [];
  const note = (error: unknown) => void unhandled.push(error);
  const others = process.listeners('unhandledRejection');
  process.removeAllListeners('unhandledRejection');
  process.on('unhandledRejection', note);
  try {
    let resolve: () => void = () => undefined;
    const earlier = order.enqueue(
      new Promise<void>((ready) => {
        resolve = ready;
      }),
      async () => 'earlier',
    );
    const unread = order.enqueue(Promise.reject(new Error('not read')), async () => 'unread');
    for (let i = 0; i < 3; i++) {
      await new Promise((next) => setImmediate(next)); // Node tells what is unhandled before it.
    }
    resolve();
    await expect(unread).rejects.toThrow('not read');
    expect(await earlier).toBe('earlier');
    expect(unhandled).toEqual([]);
  } finally {
    process.off('unhandledRejection', note);
    for (const listener of others) {
      process.on('unhandledRejection', listener);
    }
  }
});

it('keeps the place of a call that failed before it was made, and of no other', async () => {
  const begun: string[] = [];
  let numCalls = 0;
  const order = new StartOrder(() => numCalls);
  const fail = (name: string, calls: number) =>
    order.enqueue(
      Promise.resolve(),
      async () => {
        numCalls += calls;
        await new Promise((resolve) => setImmediate(resolve));
        begun.push(name);
        throw new Error(name);
      },
      { failed: async () => void begun.push(`in place of ${name}`) },
    );
  const ends = [fail('unmade', 0), fail('made', 1)];
  const last = order.enqueue(Promise.resolve(), async () => void begun.push('last'));
  await Promise.allSettled([...ends, last]);
  expect(begun).toEqual(['unmade', 'in place of unmade', 'last', 'made']);
});

it('a serial call ends before the next one starts', async () => {
  const order = new StartOrder(() => begun.length);
  const begun: string[] = [];
  let end: () => void = () => undefined;
  const serial = order.enqueue(
    Promise.resolve(),
    () => {
      begun.push('serial');
      return new Promise<void>((resolve) => {
        end = resolve;
      });
    },
    { isSerial: true },
  );
  const next = order.enqueue(Promise.resolve(), async () => void begun.push('next'));
  await new Promise((resolve) => setImmediate(resolve));
  expect(begun).toEqual(['serial']);
  end();
  await Promise.all([serial, next]);
  expect(begun).toEqual(['serial', 'next']);
});

it('the order is one for all that use a group, and its wrappers', () => {
  const groups = createMemoryGroup(1);
  const delayed = withDelay(groups[0]!, 1);
  expect(delayed.starts).toBe(groups[0]!.starts);
  expect(delayed.locals).toBe(groups[0]!.locals);
});
