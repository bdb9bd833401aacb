// Several ranks share an expert. Each expert has a group of some of the tree's ranks, and its
// parameters differ from those of the other groups. A save loses none of them.

import { type FsdpOptions, FullyShardedDataParallel } from '@shardweave/fsdp';
import { gatherFullOptimStateDict, localMetadataDict } from '@shardweave/fsdp/fairscale';
import { AdamW, loadCheckpoint, saveCheckpoint, stateDict } from '@shardweave/nn';
import { Device } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { layer, onRanks, type Rank, Stack } from '../../../tooling/test-kit/index.ts';
import { adam, namesIn, place, train } from './support/saved-models.js';
import { wrapIn } from './support/sharding.js';

/** Returns a layer of all ranks, followed by an expert for each `size` ranks in order. */
async function withExperts(
  rank: Rank,
  options: { readonly size: number; readonly seed: number; readonly expert?: Partial<FsdpOptions> },
): Promise<FullyShardedDataParallel> {
  const { size, seed, expert = {} } = options;
  const number = Math.floor(rank.rank / size);
  const device = new Device(rank.device.backend, { seed: seed + number });
  const processGroup = await rank.group.split(number);
  const shared = layer(device);
  const own = new FullyShardedDataParallel(layer(device), { processGroup, ...expert });
  return wrapIn(rank)(new Stack(device, [shared, own]));
}

async function expertOf(model: FullyShardedDataParallel): Promise<string> {
  return Buffer.from((await stateDict(model)).get('1.weight')!.data).toString('base64');
}

/**
 * Saves two experts over four ranks after a step. Returns the save, each rank's expert and its
 * optimizer state.
 */
async function savedPairs(expert: Partial<FsdpOptions> = {}) {
  const files = place();
  const values = await onRanks(4, async (rank) => {
    const model = await withExperts(rank, { size: 2, seed: 10, expert });
    const optimizer = adam(model);
    await train(model, optimizer, { rank, steps: [0] });
    await saveCheckpoint(model, files, { optimizer });
    return { expert: await expertOf(model), state: await stateOf(model, optimizer) };
  });
  expect(values[0]!.expert).toBe(values[1]!.expert);
  expect(values[2]!.expert).toBe(values[3]!.expert);
  expect(values[0]!.expert).not.toBe(values[2]!.expert);
  return { files, values };
}

async function stateOf(
  model: FullyShardedDataParallel,
  optimizer: ReturnType<typeof adam>,
): Promise<unknown> {
  const states = model.instances()[1]!.units.map(({ flat }) => optimizer.readFlatState(flat));
  return (await Promise.all(states)).map((state) => [
    state?.runs,
    [...(state?.tensors ?? [])].map(([part, bytes]) => [part, Buffer.from(bytes).toString('hex')]),
  ]);
}

it('experts in a group of their own get its options back on every rank', async () => {
  const files = place();
  const optimizerOf = (model: FullyShardedDataParallel, lrs: readonly [number, number]) => {
    const experts = model.namedParameters().filter(([name]) => name.startsWith('1.'));
    const own = experts.map(([, each]) => each);
    const others = model.parameters().filter((each) => !own.includes(each));
    const groups = [
      { params: own, lr: lrs[0] },
      { params: others, lr: lrs[1] },
    ];
    return new AdamW(groups);
  };
  await onRanks(2, async (rank) => {
    const model = await withExperts(rank, { size: 1, seed: 10 });
    await saveCheckpoint(model, files, { optimizer: optimizerOf(model, [3, 4]) });
  });
  await onRanks(2, async (rank) => {
    const model = await withExperts(rank, { size: 1, seed: 50 });
    const optimizer = optimizerOf(model, [1, 1]);
    await loadCheckpoint(model, files, { optimizer });
    expect(optimizer.groups.map(({ lr }) => lr)).toEqual([3, 4]);
  });
});

describe.each([{}, { noBroadcastOptimState: true }, { flattenParameters: false }])(
  'experts over pairs of four ranks, %j',
  (expert) => {
    it('come back to their own ranks, with their optimizer state', async () => {
      const { files, values } = await savedPairs(expert);
      await onRanks(4, async (rank) => {
        const model = await withExperts(rank, { size: 2, seed: 50, expert });
        const optimizer = adam(model);
        await loadCheckpoint(model, files, { optimizer });
        expect(await expertOf(model)).toBe(values[rank.rank]!.expert);
        expect(await stateOf(model, optimizer)).toEqual(values[rank.rank]!.state);
      });
    });

    it.each([
      { worldSize: 2, size: 1 },
      { worldSize: 6, size: 3 },
    ])('come to the groups in order: $size of $worldSize ranks', async ({ worldSize, size }) => {
      const { files, values } = await savedPairs(expert);
      await onRanks(worldSize, async (rank) => {
        const model = await withExperts(rank, { size, seed: 50, expert });
        await loadCheckpoint(model, files);
        expect(await expertOf(model)).toBe(values[rank.rank < size ? 0 : 2]!.expert);
      });
    });

    it('are named where a load lacks one', async () => {
      const { files } = await savedPairs(expert);
      await onRanks(3, async (rank) => {
        const model = await withExperts(rank, { size: 1, seed: 50, expert });
        const loading = loadCheckpoint(model, files);
        await expect(loading).rejects.toThrow(rank.rank === 2 ? /1\.weight@2/ : /rank 2\/3 failed/);
      });
    });
  },
);

it('experts over pairs stay out of a whole optimizer state, by name', async () => {
  const fulls = await onRanks(4, async (rank) => {
    const model = await withExperts(rank, { size: 2, seed: 10 });
    const optimizer = adam(model);
    await train(model, optimizer, { rank, steps: [0] });
    expect(localMetadataDict(model).flats.map(({ isLocal }) => isLocal)).toEqual([false, true]);
    return gatherFullOptimStateDict(model, optimizer);
  });
  expect(fulls[0]!.uncollected).toEqual(['1.weight', '1.bias']);
  expect([...fulls[0]!.state.keys()]).toEqual(['0.weight', '0.bias']);
});

it('replicas of an instance that is sharded over fewer ranks are one, and written once', async () => {
  const files = place();
  const make = async (rank: Rank, seed: number) => {
    const device = new Device(rank.device.backend, { seed });
    const processGroup = await rank.group.split(Math.floor(rank.rank / 2));
    const replicateGroup = await rank.group.split(rank.rank % 2);
    const inner = new FullyShardedDataParallel(layer(device), { processGroup, replicateGroup });
    return wrapIn(rank)(new Stack(device, [layer(device), inner]));
  };
  const values = await onRanks(4, async (rank) => {
    const model = await make(rank, 5);
    const optimizer = adam(model);
    await train(model, optimizer, { rank, steps: [0] });
    await saveCheckpoint(model, files, { optimizer });
    const full = await gatherFullOptimStateDict(model, optimizer);
    if (rank.rank === 0) {
      expect(full!.uncollected).toEqual([]);
    }
    return expertOf(model);
  });
  const names = (await namesIn(files)).filter((name) => name.startsWith('1.'));
  expect(names.sort()).toEqual(['1.bias', '1.weight']);
  await onRanks(3, async ({ device, group }) => {
    const inner = new FullyShardedDataParallel(layer(device), { processGroup: group });
    const model = wrapIn({ group })(new Stack(device, [layer(device), inner]));
    await loadCheckpoint(model, files);
    expect(await expertOf(model)).toBe(values[0]);
  });
});

it('a group of the same ranks by another name is no expert', async () => {
  const files = place();
  await onRanks(2, async (rank) => {
    const processGroup = await rank.group.split(0);
    const inner = new FullyShardedDataParallel(layer(rank.device), { processGroup });
    const model = wrapIn(rank)(new Stack(rank.device, [layer(rank.device), inner]));
    await saveCheckpoint(model, files);
  });
  expect(await namesIn(files)).toEqual(['0.bias', '0.weight', '1.bias', '1.weight']);
});
