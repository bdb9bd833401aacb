// These tests count what a barrier costs: the messages that all ranks together send.

import { expect, it } from 'vitest';
import { barrier } from '../src/algorithms/barrier.js';
import type { Call } from '../src/endpoint/call.js';

/** Counts the messages of one barrier that all ranks call over a transport in memory. */
async function messagesOf(worldSize: number, late?: number): Promise<number> {
  let numMessages = 0;
  const waiting = new Map<string, () => void>();
  const arrived = new Set<string>();
  const callOf = (rank: number) => ({
    rank,
    worldSize,
    peers: Array.from({ length: worldSize - 1 }, (_, i) => (rank + 1 + i) % worldSize),
    send: async (peer: number, _payload: Uint8Array, phase = 0) => {
      numMessages++;
      const key = `${rank} to ${peer}, ${phase}`;
      arrived.add(key);
      waiting.get(key)?.();
    },
    receive: (peer: number, _target: Uint8Array, phase = 0) =>
      new Promise<void>((resolve) => {
        const key = `${peer} to ${rank}, ${phase}`;
        if (arrived.has(key)) {
          resolve();
        } else {
          waiting.set(key, resolve);
        }
      }),
    copy: async () => {},
    isLending: false,
  });
  const ranks = Array.from({ length: worldSize }, (_, rank) => rank);
  let numDone = 0;
  const begin = (rank: number) =>
    barrier(callOf(rank) as unknown as Call).then(() => {
      numDone++;
    });
  const calls = ranks.filter((rank) => rank !== late).map(begin);
  if (late !== undefined) {
    await new Promise((resolve) => setImmediate(resolve));
    expect(numDone).toBe(0); // No rank leaves before all have come.
    calls.push(begin(late));
  }
  await Promise.all(calls);
  return numMessages;
}

it.each([
  [1, 0],
  [2, 2],
  [3, 6],
  [4, 6],
  [8, 14],
  [96, 190],
])('a barrier of %i ranks takes %i messages', async (worldSize, expected) => {
  expect(await messagesOf(worldSize)).toBe(expected);
});

it.each([0, 1, 7])('a barrier of 8 ranks holds all until rank %i has come', async (late) => {
  await messagesOf(8, late);
});
