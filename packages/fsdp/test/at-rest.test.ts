// A next process resumes from what a rank's store holds of a sharded model, beside its shards.
// These tests check what that is and what is refused.

import { FullyShardedDataParallel } from '@shardweave/fsdp';
import { BatchNorm1d, Dropout, Linear, Sequential, Sgd } from '@shardweave/nn';
import { createHostStore, type ShardStore } from '@shardweave/shard-store';
import { type Device, mean, square, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { onRanks, type Rank } from './support/ranks.js';

const WORLD_SIZE = 2;
const DIM = 4;

const linear = (device: Device, inFeatures = DIM, outFeatures = DIM) =>
  new Linear(device, { inFeatures, outFeatures });

type Build = (device: Device) => Sequential;

const normed: Build = (device) =>
  new Sequential(device, [
    linear(device),
    new BatchNorm1d(device, { numFeatures: DIM }),
    new Dropout(device, { p: 0.5 }),
    linear(device),
  ]);

/**
 * Opens a model in a rank's store, as one process does. The last layer is an instance of its own.
 */
function open(
  rank: Rank,
  store: ShardStore | undefined,
  { build = normed, resume }: { readonly build?: Build; readonly resume?: boolean } = {},
) {
  const { device, group } = rank;
  const offload =
    store === undefined
      ? {}
      : { offloadConfig: { store, ...(resume === undefined ? {} : { resume }) } };
  const options = { processGroup: group, ...offload };
  const module = build(device);
  const last = String(module.layers().length - 1);
  module.replaceChild(last, new FullyShardedDataParallel(module.layers().at(-1)!, options));
  const model = new FullyShardedDataParallel(module, options);
  const optimizer = new Sgd(model.parameters(), { lr: 0.1, momentum: 0.9 });
  const output = () => {
    const data = Float32Array.from({ length: 8 * DIM }, (_, i) => Math.sin(i + rank.rank));
    return model.call(device.tensor(data, [8, DIM])) as Promise<Tensor>;
  };
  const backward = () =>
    device.scope(async () => {
      const loss = mean(square(await output()));
      await loss.backward();
      return loss.item();
    });
  const step = async () => {
    const loss = await backward();
    await optimizer.step();
    optimizer.zeroGrad();
    return loss;
  };
  const evaluate = () =>
    device.noGrad(() =>
      device.scope(async () => {
        model.eval();
        const values = await (await output()).toArray();
        model.train();
        return [...values];
      }),
    );
  const close = () => {
    optimizer.dispose();
    model.dispose();
  };
  return { model, optimizer, output, backward, step, evaluate, close };
}

/** Trains two steps on each rank, and returns what the models then evaluate to. */
async function left() {
  const stores = Array.from({ length: WORLD_SIZE }, () => createHostStore());
  const evaluated = await onRanks(WORLD_SIZE, async (rank) => {
    const run = open(rank, stores[rank.rank]!);
    await run.step();
    await run.step();
    const values = await run.evaluate();
    run.close();
    return values;
  });
  return { stores, evaluated };
}

/** Returns the refusal that each rank gets. The first one ends the job for the others. */
async function refusals(stores: readonly ShardStore[], options: Parameters<typeof open>[2]) {
  const messages: string[] = [];
  const job = onRanks(WORLD_SIZE, async (rank) => {
    await open(rank, stores[rank.rank]!, options).model.initialize();
  });
  await job.catch((error: unknown) => void messages.push((error as Error).message));
  return messages;
}

describe('a resumed run', () => {
  it('has the buffers of the run before', async () => {
    const { stores, evaluated } = await left();
    const found = await onRanks(WORLD_SIZE, (rank) =>
      open(rank, stores[rank.rank]!, { resume: true }).evaluate(),
    );
    expect(found).toEqual(evaluated);
  });

  it('has the random state too: dropout goes on where it was', async () => {
    const { stores } = await left();
    const expected = await onRanks(WORLD_SIZE, async (rank) => {
      const run = open(rank, undefined);
      await run.step();
      await run.step();
      return run.step();
    });
    const found = await onRanks(WORLD_SIZE, (rank) =>
      open(rank, stores[rank.rank]!, { resume: true }).step(),
    );
    expect(found).toEqual(expected);
  });
});

describe('one at a time', () => {
  it('a step beside a forward is refused, and a forward beside a step waits for its end', async () => {
    const evaluated = (isStored: boolean) =>
      onRanks(WORLD_SIZE, async (rank) => {
        const run = open(rank, isStored ? createHostStore() : undefined);
        await run.backward();
        if (isStored) {
          const calling = run.evaluate();
          await expect(run.optimizer.step()).rejects.toThrow(/got forward under way/);
          await calling;
        }
        const stepping = run.optimizer.step();
        if (!isStored) {
          await stepping;
        }
        const values = await run.evaluate();
        await stepping;
        return values;
      });
    expect(await evaluated(true)).toEqual(await evaluated(false));
  });
});

describe('a store of a trained model', () => {
  it.each<[string, Build]>([
    [
      'transposed layers',
      (device) => new Sequential(device, [linear(device, 4, 5), linear(device, 5, 4)]),
    ],
    ['one layer less', (device) => new Sequential(device, [linear(device), linear(device)])],
  ])('is refused by another one: %s', async (_, build) => {
    const { stores } = await left();
    expect(await refusals(stores, { build, resume: true })).toContainEqual(
      expect.stringMatching(
        /^resume: expected the model that the store has under 'rank\d\/instance/,
      ),
    );
  });

  it('is refused to a fresh start unless the options allow it', async () => {
    const { stores, evaluated } = await left();
    const keys = stores.map((store) => [...store.keys()].sort());
    expect(await refusals(stores, {})).toContainEqual(
      expect.stringMatching(/^resume: expected no trained model .* got one after 2 steps/),
    );
    expect(stores.map((store) => [...store.keys()].sort())).toEqual(keys);
    const found = await onRanks(WORLD_SIZE, async (rank) => {
      const run = open(rank, stores[rank.rank]!, { resume: false });
      await run.step();
      await run.step();
      return run.evaluate();
    });
    expect(found).toEqual(evaluated);
  });
});
