// In a dry group only one rank exists. Its counters equal those of the same calls over real
// messages.

import {
  type CollectiveStats,
  CollectiveUsageError,
  createMemoryGroup,
  type ProcessGroup,
} from '@shardweave/collectives';
import { createDryGroup } from '@shardweave/collectives/dry';
import { expect, it } from 'vitest';

const f32 = { dtype: 'f32', op: 'sum' } as const;

/** Makes calls of all kinds: small and large ones, with even and uneven parts. */
async function callAll(world: ProcessGroup): Promise<CollectiveStats[]> {
  const { worldSize, rank } = world;
  const group = await world.split(0);
  const bytes = (length: number) => new Uint8Array(length);
  for (const n of [4, 1000, 80_000]) {
    await group.allGather(bytes(n), bytes(n * worldSize));
    await group.reduceScatter(bytes(n * worldSize), bytes(n), f32);
    await group.allReduce(bytes(n), bytes(n), f32);
    await group.broadcast(bytes(n), { root: worldSize - 1 });
    await group.gather(bytes(n), rank === 0 ? bytes(n * worldSize) : null, { root: 0 });
  }
  const counts = Array.from({ length: worldSize }, (_, r) => 100 + 7 * r);
  const sum = counts.reduce((all, count) => all + count, 0);
  await group.allGather(bytes(counts[rank]! * 4), bytes(sum * 4), { dtype: 'f32', counts });
  await world.reduceScatter(bytes(sum * 4), bytes(counts[rank]! * 4), { ...f32, counts });
  await world.allReduce(bytes(4 * 9001), bytes(4 * 9001), f32);
  await world.barrier();
  const stats = [group.stats(), world.stats()];
  await group.close();
  await world.close();
  return stats;
}

it.each([1, 2, 3, 5])('counts what each of %i ranks counts over messages', async (worldSize) => {
  const real = await Promise.all(createMemoryGroup(worldSize).map(callAll));
  for (let rank = 0; rank < worldSize; rank++) {
    expect(await callAll(createDryGroup(worldSize, { rank }))).toEqual(real[rank]);
  }
});

it('gives what small calls give where all ranks say the same', async () => {
  const group = createDryGroup(3, { rank: 1 });
  const all = new Uint8Array(6);
  await group.allGather(Uint8Array.of(5, 7), all);
  expect([...all]).toEqual([5, 7, 5, 7, 5, 7]);
});

it('refuses calls that would need a message, and ranks that do not exist', async () => {
  await expect(createDryGroup(2).send(new Uint8Array(4), { to: 1 })).rejects.toThrow(
    /expected a collective without compression/,
  );
  expect(() => createDryGroup(0)).toThrow(CollectiveUsageError);
  expect(() => createDryGroup(2, { rank: 2 })).toThrow(/expected .* a rank below it, got 2 and 2/);
});
