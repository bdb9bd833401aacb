// The order in which collectives start, whatever becomes ready when, and after a failure.

import { expect, it } from 'vitest';
import { StartOrder } from '../src/unit/start-order.js';

it('starts in the order of the calls, though the last is ready first, and waits for no end', async () => {
  const order = new StartOrder();
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
      never,
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

it('has something else in the place of what has no input, and goes on after any failure', async () => {
  const order = new StartOrder();
  const begun: string[] = [];
  const begin = (name: string) => async (): Promise<string> => {
    begun.push(name);
    return name;
  };
  const first = order.enqueue(Promise.resolve(), begin('first'), never);
  const unread = order.enqueue(Promise.reject(new Error('not read')), begin('unread'), async () => {
    begun.push('in its place');
  });
  const broken = order.enqueue(
    Promise.resolve(),
    (): Promise<string> => {
      throw new Error('broken');
    },
    never,
  );
  const last = order.enqueue(Promise.resolve(), begin('last'), never);
  expect(await last).toBe('last');
  expect(await first).toBe('first');
  await expect(unread).rejects.toThrow('not read');
  await expect(broken).rejects.toThrow('broken');
  expect(begun).toEqual(['first', 'in its place', 'last']);
});

function never(error: unknown): never {
  throw error;
}
