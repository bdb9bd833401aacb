// This is hybrid sharding with two shards x two replicas, where the replicas use different
// parameters. What any rank of any replica uses is reduced over all of them.

import { type FsdpOptions, FullyShardedDataParallel } from '@shardweave/fsdp';
import { type Module, Sgd, stateDict } from '@shardweave/nn';
import { describe, expect, it } from 'vitest';
import { onRanks, type Rank } from '../../../tooling/test-kit/index.ts';
import { backwardOf, Dot, Dots } from './support/dots.js';

const LENGTH = 200; // Both shards hold a part of it.

async function hybrid({ device, group, rank }: Rank, options: Partial<FsdpOptions>) {
  const groups = {
    processGroup: await group.split(rank >> 1),
    replicateGroup: await group.split(rank & 1),
  };
  const wrap = (module: Module, name: string) =>
    new FullyShardedDataParallel(module, {
      ...groups,
      name,
      findUnusedParameters: true,
      ...options,
    });
  const inner = new Dots(
    device,
    [0, 1, 2].map((i) => wrap(new Dot(device, LENGTH, 0), `part ${i}`)),
  );
  return { inner, model: wrap(inner, 'root') };
}

/** Returns the weight of each part, all of whose elements are equal. */
async function weights(model: FullyShardedDataParallel): Promise<number[]> {
  return [...(await stateDict(model)).values()].map(({ data }) => {
    const values = new Float32Array(data.slice().buffer);
    expect(new Set(values).size).toBe(1);
    return values[0]!;
  });
}

describe.each<Partial<FsdpOptions>>([
  {},
  { bucketCapMb: 0 },
  { moveParamsToCpu: true },
  { reshardAfterForward: false, flattenParameters: false },
])('two shards x two replicas, %j', (options) => {
  it('parts that one replica alone uses train on all ranks, those that none uses stay', async () => {
    const perRank = await onRanks(4, async (rank) => {
      const { inner, model } = await hybrid(rank, options);
      const optimizer = new Sgd(model.parameters(), { lr: 1 });
      const isFirstReplica = rank.rank < 2;
      inner.detached = isFirstReplica ? [1, 2] : [0, 2];
      await backwardOf(model, LENGTH, 2 ** rank.rank);
      await optimizer.step();
      optimizer.zeroGrad();
      return weights(model);
    });
    // The means over four ranks are (1 + 2) / 4 for the first replica's part and (4 + 8) / 4 for
    // the second's.
    for (const values of perRank) {
      expect(values).toEqual([-0.75, -3, 0]);
    }
  });

  it('what noSync left on one replica alone is reduced over both', async () => {
    const perRank = await onRanks(4, async (rank) => {
      const { inner, model } = await hybrid(rank, options);
      const optimizer = new Sgd(model.parameters(), { lr: 1 });
      inner.detached = rank.rank < 2 ? [1, 2] : [0, 2];
      await model.noSync(() => backwardOf(model, LENGTH, 2 ** rank.rank));
      inner.detached = [0, 1];
      await backwardOf(model, LENGTH, 4);
      await optimizer.step();
      return weights(model);
    });
    for (const values of perRank) {
      expect(values).toEqual([-0.75, -3, -4]);
    }
  });
});
