// The number of messages of each call is checked for growing world sizes. It is twice the edges of
// a tree (up and down), not one message for each pair of ranks.

import { Endpoint, type ProcessGroup } from '@shardweave/collectives';
import { memoryHarness, type TransportHarness } from '@shardweave/collectives/testing';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { wsHarness } from './support/ws-harness.js';

afterEach(() => {
  vi.restoreAllMocks();
});

const CALLS: readonly (readonly [string, (group: ProcessGroup) => Promise<void>])[] = [
  ['a barrier', (group) => group.barrier()],
  [
    'a sum of 4 bytes',
    (group) => group.allReduce(new Uint8Array(4), new Uint8Array(4), { dtype: 'f32', op: 'sum' }),
  ],
  [
    'a maximum of 16 KiB',
    (group) => {
      const bytes = new Uint8Array(16 * 1024);
      return group.allReduce(bytes, bytes, { dtype: 'f32', op: 'max' });
    },
  ],
];

describe.each([
  [memoryHarness, 96],
  [wsHarness, 12],
] as readonly (readonly [TransportHarness, number])[])('over $0.name', (harness, worldSize) => {
  it(`${worldSize} ranks send as many messages as a tree has edges, up and down`, async () => {
    const onMessage = vi.spyOn(Endpoint.prototype, 'onMessage');
    const ranks = await harness.create(worldSize);
    for (const [name, call] of CALLS) {
      onMessage.mockClear();
      await Promise.all(ranks.map(({ group }) => call(group)));
      expect({ [name]: onMessage.mock.calls.length }).toEqual({ [name]: 2 * (worldSize - 1) });
    }
    await Promise.all(ranks.map(({ group }) => group.close()));
  });
});
