// Calls may be made without waiting for the one before. They take turns on their group in the order
// in which they were made, however long each takes on a rank.

import type { ProcessGroup } from '@shardweave/collectives';
import type { CommunicationHook } from '@shardweave/ddp-buckets';
import { Reducer } from '@shardweave/ddp-buckets/apex';
import { add } from '@shardweave/tensor-core';
import { expect, it } from 'vitest';
import { moduleOf } from '../../../tooling/test-kit/index.ts';
import { Bag, onRanks, pull, pulled, weightsOf, wrap } from './support/ranks.js';

/** Lets other work run first, `count` times. */
async function lag(count: number): Promise<void> {
  for (let i = 0; i < count; i++) {
    await new Promise((resolve) => setImmediate(resolve));
  }
}

/**
 * Returns a group in which each rank hears late of the end of other collectives than the other
 * ranks do.
 */
function withLags(group: ProcessGroup): ProcessGroup {
  let numCalls = 0;
  for (const name of ['allGather', 'broadcast', 'allReduce'] as const) {
    const call = group[name].bind(group) as (...args: unknown[]) => Promise<void>;
    group[name] = async (...args: unknown[]) => {
      const turns = numCalls++ % 2 === group.rank ? 8 : 0;
      await call(...args);
      await lag(turns);
    };
  }
  return group;
}

it('initialize twice, of two wrappers and a reducer, with what follows, all at once', async () => {
  await onRanks(
    2,
    async (rank) => {
      const bags = [1, 2].map((value) => {
        const bag = new Bag(rank.device, { a: 3, b: 200 });
        const { device } = bag;
        for (const tensor of bag.parameters()) {
          device.scope(() =>
            device.copyInto(tensor, device.full([tensor.size], value + 5 * rank.rank)),
          );
        }
        return bag;
      });
      const [first, second] = bags.map((bag) => wrap(bag, rank));
      const reducer = new Reducer(bags[0]!, { processGroup: rank.group });
      await Promise.all([
        first!.initialize(),
        second!.initialize(),
        reducer.initialize(),
        first!.initialize(),
        second!.syncParameters({ root: 1 }),
        first!.syncBuffers(),
        first!.syncParameters(),
      ]);
      expect((await weightsOf(bags[0]!)).get('a')).toEqual(Float32Array.of(1, 1, 1));
      expect((await weightsOf(bags[1]!)).get('b')).toEqual(new Float32Array(200).fill(2));
      await pull(first!, 1 + rank.rank);
      expect(await pulled(first!)).toEqual({ a: 1.5, b: 3 });
      await Promise.all([reducer.reduce(), second!.syncParameters()]);
    },
    { wrapGroup: withLags },
  );
});

it('one backward through two wrappers of a group, whose buckets are ready in another order', async () => {
  await onRanks(2, async (rank) => {
    let numStarted = 0;
    const wrapped = [0, 1].map((number) => {
      const bag = new Bag(rank.device, { a: 3, b: 3 });
      // Reading back one wrapper's gradients takes longer than the other's, and which one differs
      // by rank.
      const communicationHook: CommunicationHook = {
        name: 'ordered',
        isSerial: true,
        reduce: async ({ bytes, dtype, group, tag, identity }) => {
          numStarted += 1;
          await lag(number === rank.rank ? 8 : 0);
          await group.allReduce(bytes, bytes, { dtype: dtype as 'f32', op: 'sum', tag, identity });
        },
      };
      return wrap(bag, rank, { messageSize: 1, communicationHook });
    });
    const [first, second] = wrapped;
    const parts = { first: first!, second: second! };
    const both = moduleOf(rank.device, parts, async (present, factor: number) =>
      add(await present.first.call(factor), await present.second.call(factor)),
    );
    for (let step = 0; step < 2; step++) {
      both.zeroGrad();
      await pull(both, 1 + rank.rank);
      expect(await pulled(both)).toEqual({
        'first.a': 1.5,
        'first.b': 3,
        'second.a': 1.5,
        'second.b': 3,
      });
    }
    expect(numStarted).toBe(8);
  });
});
