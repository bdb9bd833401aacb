// A next process resumes from what a rank's store holds of a sharded model, beside its shards.
// These tests check what that is and what is refused.

import { toF32Array } from '@shardweave/dtypes';
import { type FsdpOptions, FullyShardedDataParallel } from '@shardweave/fsdp';
import { BatchNorm1d, Dropout, Linear, Sequential, Sgd, stateDict } from '@shardweave/nn';
import { createHostStore, type ShardStore } from '@shardweave/shard-store';
import { type Device, mean, square, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { onRanks, type Rank } from '../../../tooling/test-kit/index.ts';

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
  {
    build = normed,
    resume,
    name = 'fsdp',
    fsdp,
  }: {
    readonly build?: Build;
    readonly resume?: boolean;
    readonly name?: string;
    readonly fsdp?: Partial<FsdpOptions>;
  } = {},
) {
  const { device, group } = rank;
  const offload =
    store === undefined
      ? {}
      : { offloadConfig: { store, ...(resume === undefined ? {} : { resume }) } };
  const options = { processGroup: group, name, ...fsdp, ...offload };
  const module = build(device);
  const last = String(module.layers().length - 1);
  module.replaceChild(
    last,
    new FullyShardedDataParallel(module.layers().at(-1)!, { ...options, name: `${name}'s last` }),
  );
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

describe.each([1, 2])('with %i ranks', (worldSize) => {
  const newStores = () => Array.from({ length: worldSize }, () => createHostStore());

  it('a store opens in any dtype, whatever the one before it computed in', async () => {
    const stores = newStores();
    let before: unknown;
    for (const dtype of ['f32', 'bf16', 'f16', 'bf16', 'f32'] as const) {
      const isFirst = before === undefined;
      const fsdp =
        dtype === 'f32' ? {} : { mixedPrecision: true, computeDType: dtype, bufferDType: dtype };
      const states = await onRanks(worldSize, async (rank) => {
        const run = open(rank, stores[rank.rank]!, { fsdp, ...(isFirst ? {} : { resume: true }) });
        const opened = await valuesOf(run.model);
        await run.step();
        const left = await valuesOf(run.model);
        run.close();
        return { opened, left };
      });
      const opened = states.map((state) => state.opened);
      expect(opened).toEqual(isFirst ? opened : before);
      before = states.map((state) => state.left);
      expect(before).not.toEqual(opened);
    }
  });

  it('two models are told apart by their names, whichever is called first', async () => {
    const stores = newStores();
    const job = (resume: boolean | undefined, names: readonly string[]) =>
      onRanks(worldSize, async (rank) => {
        const options = resume === undefined ? {} : { resume };
        const runs = ['actor', 'critic'].map((name) =>
          open(rank, stores[rank.rank]!, { name, ...options }),
        );
        const [actor, critic] = runs;
        if (resume !== true) {
          await actor!.step();
          await critic!.step();
        }
        const order = names.map((name) => (name === 'actor' ? actor! : critic!));
        const found = new Map<string, unknown>();
        for (const [i, { model }] of order.entries()) {
          found.set(names[i]!, await valuesOf(model));
        }
        runs.forEach((run) => void run.close());
        return [found.get('actor'), found.get('critic')];
      });
    const expected = await job(undefined, ['actor', 'critic']);
    expect(expected[0]![0]).not.toEqual(expected[0]![1]);
    expect(await job(true, ['critic', 'actor'])).toEqual(expected);
  });

  it('a second model of one name is refused when it is made', async () => {
    const stores = newStores();
    await onRanks(worldSize, async (rank) => {
      const first = open(rank, stores[rank.rank]!);
      expect(() => open(rank, stores[rank.rank]!)).toThrow(
        /^store: expected a name that no other .* Give each model a name of its own/,
      );
      first.close();
      await open(rank, stores[rank.rank]!).step();
    });
  });

  it.each(['nobody', 'weights', 'biases'] as const)(
    'two optimizers of one flat find their states where %s had no gradient, and a rank no element',
    async (frozen) => {
      const through = (stores: readonly ShardStore[], resume: boolean | undefined, steps: number) =>
        onRanks(worldSize, async (rank) => {
          const { device, group: processGroup } = rank;
          const offloadConfig = {
            store: stores[rank.rank]!,
            ...(resume === undefined ? {} : { resume }),
          };
          const layer = new Linear(device, { inFeatures: 6, outFeatures: 6 });
          const model = new FullyShardedDataParallel(layer, { processGroup, offloadConfig });
          const [weight, bias] = model.parameters();
          weight!.requiresGrad = frozen !== 'weights';
          bias!.requiresGrad = frozen !== 'biases';
          const optimizers = [weight!, bias!].map(
            (parameter) => new Sgd([parameter], { lr: 0.1, momentum: 0.9 }),
          );
          for (let step = 0; step < steps; step++) {
            await device.scope(async () => {
              const data = Float32Array.from({ length: 48 }, (_, i) => Math.sin(i + rank.rank));
              await mean(square(await model.call(device.tensor(data, [8, 6])))).backward();
            });
            for (const optimizer of optimizers) {
              await optimizer.step();
              optimizer.zeroGrad();
            }
          }
          const values = await valuesOf(model);
          model.dispose();
          return values;
        });
      const expected = await through(newStores(), undefined, 4);
      const stores = newStores();
      await through(stores, undefined, 2);
      expect(await through(stores, true, 2)).toEqual(expected);
    },
  );
});

it('one store that several ranks have is refused on all ranks', async () => {
  const [shared, own] = [createHostStore(), createHostStore()];
  await onRanks(3, async (rank) => {
    const store = rank.rank === 2 ? own : shared;
    await expect(open(rank, store).model.initialize()).rejects.toThrow(
      /^fsdp: expected one store a rank, got one that several ranks have/,
    );
    expect([store.generation, store.keys()]).toEqual([0, []]);
  });
});

/** Returns a state's values as numbers, whatever their dtypes. */
async function valuesOf(model: FullyShardedDataParallel): Promise<Record<string, number[]>> {
  const state = await stateDict(model);
  return Object.fromEntries(
    [...state].map(([name, { data, dtype }]) => [name, [...toF32Array(data, dtype)]]),
  );
}

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
