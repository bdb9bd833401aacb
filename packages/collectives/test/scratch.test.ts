// Memory for parts on their way is bounded by segments, not by whole buffers, and the steady state
// allocates none.

import { type ReduceHook, systemClock } from '@shardweave/collectives';
import { describe, expect, it } from 'vitest';
import { createEagerRanks, type EagerRank } from './support/eager-network.js';

const MIB = 2 ** 20;
const SUM = { dtype: 'f32', op: 'sum' } as const;

const onAll = (ranks: readonly EagerRank[], call: (rank: EagerRank) => Promise<unknown>) =>
  Promise.all(ranks.map(call));

const peakMib = ({ endpoint }: EagerRank) => endpoint.scratchStats().peakBytes / MIB;

/**
 * Resolves when everything on its way has arrived: a message takes some turns of the event loop.
 */
async function settled(): Promise<void> {
  for (let turn = 0; turn < 200; turn++) {
    await new Promise((resolve) => setImmediate(resolve));
  }
}

/** A reduction slower than the network, so that arriving parts would pile up without a bound. */
const slowReduce: ReduceHook = async () => {
  for (let turn = 0; turn < 30; turn++) {
    await new Promise((resolve) => setImmediate(resolve));
  }
};

async function close(ranks: readonly EagerRank[]): Promise<void> {
  await onAll(ranks, ({ group }) => group.close());
}

describe('scratch', () => {
  it('holds segments of large sums, not their parts', async () => {
    const ranks = createEagerRanks(4, { reduce: slowReduce });
    const buffers = ranks.map(() => new Uint8Array(32 * MIB));
    await onAll(ranks, ({ group }) => {
      const buffer = buffers[group.rank]!;
      return group.allReduce(buffer, buffer, SUM);
    });
    // The parts of three peers are 24 MiB. At most four segments of a MiB are held of each.
    for (const rank of ranks) {
      expect(peakMib(rank)).toBeLessThanOrEqual(12);
      expect(peakMib(rank)).toBeGreaterThan(0);
    }
    await close(ranks);
  });

  it('holds no more for an owner that has nearly everything', async () => {
    const ranks = createEagerRanks(3, { reduce: slowReduce });
    const counts = [4 * MIB, 0, 1];
    const input = new Uint8Array(4 * (4 * MIB + 1));
    await onAll(ranks, ({ group }) => {
      const output = new Uint8Array(4 * counts[group.rank]!);
      return group.reduceScatter(input, output, { ...SUM, counts });
    });
    for (const rank of ranks) {
      expect(peakMib(rank)).toBeLessThanOrEqual(8);
    }
    await close(ranks);
  });

  it.each(['allGather', 'broadcast', 'gather'] as const)(
    'holds the beginnings of a large %s for a late rank',
    async (operation) => {
      const ranks = createEagerRanks(4);
      const part = new Uint8Array(6 * MIB);
      const call = ({ group }: EagerRank): Promise<void> => {
        switch (operation) {
          case 'allGather':
            return group.allGather(part, new Uint8Array(24 * MIB));
          case 'broadcast':
            return group.broadcast(part.slice(), { root: 1 });
          case 'gather':
            return group.gather(part, group.rank === 0 ? new Uint8Array(24 * MIB) : null, {
              root: 0,
            });
        }
      };
      const [late, ...others] = ranks as [EagerRank, ...EagerRank[]];
      const early = onAll(others, call);
      await settled();
      await Promise.all([early, call(late)]);
      expect(peakMib(late)).toBeLessThanOrEqual(3.1);
      await close(ranks);
    },
  );

  it('is allocated in the first calls only', async () => {
    // Long copies and sums yield by the clock. Under a clock that stands still, every step does the
    // same.
    const ranks = createEagerRanks(3, { clock: { ...systemClock, now: () => 0 } });
    const inputs = ranks.map(() => new Uint8Array(3 * MIB));
    const outputs = ranks.map(() => new Uint8Array(9 * MIB));
    const step = () =>
      onAll(ranks, async ({ group }) => {
        const input = inputs[group.rank]!;
        const output = outputs[group.rank]!;
        const sum = group.allReduce(input, input, SUM);
        const small = group.allReduce(input.subarray(0, 64), output.subarray(0, 64), SUM);
        await Promise.all([sum, small]);
        await group.reduceScatter(output, input, SUM);
        await group.allGather(input, output);
        await group.broadcast(input, { root: 0 });
      });
    const allocations = () =>
      ranks.reduce((sum, { endpoint }) => sum + endpoint.scratchStats().numAllocations, 0);
    for (let i = 0; i < 3; i++) {
      await step();
    }
    const before = allocations();
    for (let i = 0; i < 30; i++) {
      await step();
    }
    // Thirty steps of three ranks take some 5,000 buffers.
    expect(allocations() - before).toBe(0);
    await close(ranks);
  });
});

describe('a large broadcast', () => {
  it('leaves its root once, and is passed on by the others', async () => {
    const ranks = createEagerRanks(4);
    const byteLength = 3 * MIB;
    const buffers = ranks.map(({ group }) => new Uint8Array(byteLength).fill(group.rank));
    await onAll(ranks, ({ group }) => group.broadcast(buffers[group.rank]!, { root: 2 }));
    for (const [rank, { group }] of ranks.entries()) {
      expect(buffers[rank]!.every((byte) => byte === 2)).toBe(true);
      const { bytesSent, bytesReceived } = group.stats();
      expect(bytesSent).toBe(rank === 2 ? byteLength : (2 * byteLength) / 3);
      expect(bytesReceived).toBe(rank === 2 ? 0 : byteLength);
    }
    await close(ranks);
  });

  it('goes directly where it is small', async () => {
    const ranks = createEagerRanks(4);
    await onAll(ranks, ({ group }) => group.broadcast(new Uint8Array(1000), { root: 2 }));
    expect(ranks[2]!.group.stats().bytesSent).toBe(3000);
    expect(ranks[0]!.group.stats().bytesSent).toBe(0);
    await close(ranks);
  });
});
