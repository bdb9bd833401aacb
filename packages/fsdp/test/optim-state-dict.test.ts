// Optimizer state is collected from shards, and cut into the shards of another world size.

import { type FsdpOptions, FullyShardedDataParallel } from '@shardweave/fsdp';
import {
  type FullOptimStateDict,
  gatherFullOptimStateDict,
  getShardFromOptimStateDict,
  loadFullOptimStateDict,
  loadOptimStateShard,
  localOptimStateDict,
} from '@shardweave/fsdp/fairscale';
import { type AdamOptions, Linear, type Module, Sgd } from '@shardweave/nn';
import type { Device } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  DIM,
  expectClose,
  forwardBackward,
  layer,
  onRanks,
  type Rank,
  Stack,
  weightsOf,
} from '../../../tooling/test-kit/index.ts';
import { adam, train } from './support/saved-models.js';
import { shardedGpt2, wrapIn } from './support/sharding.js';

/**
 * Makes three layers, of which the middle one is an instance of its own. They are wide enough that
 * shards cut weights.
 */
function net(device: Device, wrap: (module: Module) => Module): Module {
  const linear = (inFeatures: number, outFeatures: number) =>
    new Linear(device, { inFeatures, outFeatures });
  return wrap(new Stack(device, [linear(DIM, 45), wrap(linear(45, 41)), linear(41, 30)]));
}

function sharded(rank: Rank, options: Partial<FsdpOptions> = {}): FullyShardedDataParallel {
  return net(rank.device, wrapIn(rank, options)) as FullyShardedDataParallel;
}

/** Returns the whole optimizer state after two steps over `worldSize` ranks. */
async function saved(
  worldSize: number,
  options: Partial<FsdpOptions> = {},
): Promise<FullOptimStateDict<AdamOptions>> {
  const [full] = await onRanks(worldSize, async (rank) => {
    const model = sharded(rank, options);
    const optimizer = adam(model);
    await train(model, optimizer, { rank, steps: [0, 1] });
    return gatherFullOptimStateDict(model, optimizer);
  });
  return full!;
}

/** Returns the state of an optimizer of an unsharded model. */
async function plainState(steps: readonly number[]) {
  const [result] = await onRanks(1, async (rank) => {
    const model = net(rank.device, (module) => module);
    const optimizer = adam(model);
    await train(model, optimizer, { rank, steps });
    return {
      state: await optimizer.stateDict(model.namedParameters()),
      weights: await weightsOf(model),
    };
  });
  return result!;
}

function floats(bytes: Uint8Array): Float32Array {
  return new Float32Array(bytes.slice().buffer);
}

describe.each([
  [1, true],
  [2, true],
  [3, true],
  [2, false],
] as const)('over %i ranks, flattened %s', (worldSize, flattenParameters) => {
  it('the whole state has the entries, groups and values of a plain optimizer', async () => {
    const full = await saved(worldSize, { flattenParameters });
    const { state: plain } = await plainState([0, 1]);
    expect([...full.state.keys()]).toEqual([...plain.state.keys()]);
    expect(full.paramGroups).toEqual(plain.paramGroups);
    for (const [name, { step, tensors }] of full.state) {
      const wanted = plain.state.get(name)!;
      expect(step).toBe(wanted.step);
      expect([...tensors.keys()]).toEqual([...wanted.tensors.keys()]);
      for (const [part, { shape, data }] of tensors) {
        expect(shape).toEqual(wanted.tensors.get(part)!.shape);
        expectClose(floats(data), floats(wanted.tensors.get(part)!.data), 1e-7);
      }
    }
  });

  it('only rank 0 gets it, no device grows, and the optimizer is as before', () =>
    onRanks(worldSize, async (rank) => {
      const model = sharded(rank, { flattenParameters });
      const optimizer = adam(model);
      await train(model, optimizer, { rank, steps: [0, 1] });
      const before = await localOptimStateDict(model, optimizer);
      rank.device.ledger.resetPeak();
      const { live } = rank.device.memory();
      const full = await gatherFullOptimStateDict(model, optimizer);
      expect(full === undefined).toBe(rank.rank !== 0);
      expect(rank.device.memory().live).toEqual(live);
      expect(rank.device.memory().peak).toEqual(live);
      expect(await localOptimStateDict(model, optimizer)).toEqual(before);
    }));

  it('a round trip gives each rank its own shard again, bit for bit, the input untouched', () =>
    onRanks(worldSize, async (rank) => {
      const model = sharded(rank, { flattenParameters });
      const optimizer = adam(model);
      await train(model, optimizer, { rank, steps: [0, 1] });
      const extra = { lossScale: 1024 };
      const whole = await sentToAll(
        rank,
        await gatherFullOptimStateDict(model, optimizer, { extra }),
      );
      const shard = getShardFromOptimStateDict(model, whole);
      const own = await localOptimStateDict(model, optimizer, { extra });
      expect(shard).toEqual(own);
      for (const { tensors } of shard.flats.values()) {
        for (const bytes of tensors.values()) {
          bytes.fill(255); // `whole` is a copy and stays as it was.
        }
      }
      expect(getShardFromOptimStateDict(model, whole)).toEqual(own);
      expect(own.flats.size > 0 || rank.rank > 0).toBe(true);
    }));

  it('what was saved over two ranks comes back over others, and trains on', async () => {
    const full = await saved(2);
    const { weights: wanted } = await plainState([0, 1, 2, 3]);
    const perRank = await onRanks(worldSize, async (rank) => {
      const model = sharded(rank, { flattenParameters });
      const optimizer = adam(model);
      await train(model, optimizer, { rank, steps: [0, 1] }); // The load replaces this state.
      await loadFullOptimStateDict(model, optimizer, full);
      const again = await gatherFullOptimStateDict(model, optimizer);
      await train(model, optimizer, { rank, steps: [2, 3] });
      return { again, weights: await weightsOf(model) };
    });
    expect(perRank[0]!.again).toEqual(full);
    expectClose(perRank[0]!.weights, wanted);
  });
});

/** Gives rank 0's value to every rank, as reading a file would. */
const boards = new WeakMap<object, Map<string, unknown>>();
async function sentToAll<T>({ group, device, rank }: Rank, value: T | undefined): Promise<T> {
  const board = boards.get(device.backend) ?? new Map<string, unknown>();
  boards.set(device.backend, board);
  if (rank === 0) {
    board.set('value', value);
  }
  await group.barrier();
  return board.get('value') as T;
}

describe('parameters that a step does not use', () => {
  /** Makes a model whose forward leaves out a layer, in the middle or at the end. */
  const skipping = (device: Device, skipped: string) => {
    const module = new Stack(device, [layer(device), layer(device), layer(device)]);
    module.order = module.order.filter((name) => name !== skipped);
    return module;
  };

  it.each(['1', '2'])(
    'have no entry (layer %s), and load as zeros into a flat',
    async (skipped) => {
      const [full] = await onRanks(2, async (rank) => {
        const module = skipping(rank.device, skipped);
        const model = wrapIn(rank, { flattenParameters: false })(module);
        const optimizer = adam(model);
        await train(model, optimizer, { rank, steps: [0] });
        return gatherFullOptimStateDict(model, optimizer);
      });
      const used = ['0', '1', '2'].filter((name) => name !== skipped);
      expect([...full!.state.keys()].sort()).toEqual(
        used.flatMap((name) => [`${name}.bias`, `${name}.weight`]),
      );
      await onRanks(2, async (rank) => {
        const model = wrapIn(rank)(skipping(rank.device, skipped));
        const optimizer = adam(model);
        await loadFullOptimStateDict(model, optimizer, full!);
        const again = await gatherFullOptimStateDict(model, optimizer);
        for (const [name, entry] of again?.state ?? []) {
          const before = full!.state.get(name);
          if (before !== undefined) {
            expect(entry).toEqual(before);
          } else {
            expect(floats(entry.tensors.get('expAvg')!.data)).toEqual(
              new Float32Array(entry.tensors.get('expAvg')!.data.byteLength / 4),
            );
          }
        }
      });
    },
  );

  it('parameters that were frozen all along have no entry, inside a flat too', () =>
    onRanks(2, async (rank) => {
      const model = sharded(rank);
      const frozen = model.namedParameters().find(([name]) => name === '0.bias')![1];
      frozen.requiresGrad = false;
      const optimizer = adam(model);
      await train(model, optimizer, { rank, steps: [0] });
      const full = await gatherFullOptimStateDict(model, optimizer);
      if (rank.rank !== 0) {
        return;
      }
      expect(full!.state.has('0.bias')).toBe(false);
      expect(full!.state.has('0.weight')).toBe(true);
      expect(getShardFromOptimStateDict(model, full!)).toEqual(
        await localOptimStateDict(model, optimizer),
      );
    }));
});

it('tied weights have one entry', async () => {
  const [count] = await onRanks(2, async (rank) => {
    const { model } = shardedGpt2(rank, { config: { n_layer: 1 } });
    const optimizer = new Sgd(model.parameters(), { lr: 0.1, momentum: 0.9 });
    await forwardBackward(rank.device, model, 0, { batch: 2, first: rank.rank, count: 1 });
    await optimizer.step();
    const full = await gatherFullOptimStateDict(model, optimizer);
    if (full !== undefined) {
      expect([...full.state.keys()]).toEqual(model.namedParameters().map(([name]) => name));
    }
    return full?.state.size;
  });
  // These are the token and position tables, twelve in the block, and two in the last norm.
  expect(count).toBe(16);
});

describe('experts', () => {
  const withExpert = async (rank: Rank) => {
    const alone = await rank.group.split(rank.rank);
    const expert = new FullyShardedDataParallel(layer(rank.device), { processGroup: alone });
    return wrapIn(rank)(new Stack(rank.device, [layer(rank.device), expert]));
  };

  it('keep their state on their rank; the whole one names them, at another world size too', async () => {
    const step = async (rank: Rank) => {
      const model = await withExpert(rank);
      const optimizer = adam(model);
      await train(model, optimizer, { rank, steps: [0] });
      return { model, optimizer };
    };
    const fulls = await onRanks(3, async (rank) => {
      const { model, optimizer } = await step(rank);
      const full = await gatherFullOptimStateDict(model, optimizer);
      const local = await localOptimStateDict(model, optimizer);
      expect(local.flats.has('flat_param_1')).toBe(true);
      // A fresh optimizer for the same world size gets all of it back.
      const resumed = adam(model);
      await loadOptimStateShard(model, resumed, local);
      expect(await localOptimStateDict(model, resumed)).toEqual(local);
      return full;
    });
    expect(fulls[0]!.uncollected).toEqual(['1.weight', '1.bias']);
    expect([...fulls[0]!.state.keys()]).toEqual(['0.weight', '0.bias']);
    await onRanks(2, async (rank) => {
      const { model, optimizer } = await step(rank);
      const { flats } = await localOptimStateDict(model, optimizer);
      await loadFullOptimStateDict(model, optimizer, fulls[0]!);
      const after = await localOptimStateDict(model, optimizer);
      // It stays as it was.
      expect(after.flats.get('flat_param_1')).toEqual(flats.get('flat_param_1'));
      expect(after.flats.get('flat_param_0')).not.toEqual(flats.get('flat_param_0'));
    });
  });
});

it('state of a parameter that was frozen after it was trained is kept', () =>
  onRanks(2, async (rank) => {
    const model = sharded(rank);
    const optimizer = adam(model);
    await train(model, optimizer, { rank, steps: [0] });
    for (const [name, tensor] of model.namedParameters()) {
      if (name.endsWith('weight')) {
        tensor.requiresGrad = false;
      }
    }
    const full = await sentToAll(rank, await gatherFullOptimStateDict(model, optimizer));
    expect([...full.state.keys()].sort()).toEqual(
      model
        .namedParameters()
        .map(([name]) => name)
        .sort(),
    );
    for (const [name, { step, tensors }] of full.state) {
      expect(step, name).toBe(1);
      const isZero = [...tensors.values()].every(({ data }) => data.every((byte) => byte === 0));
      expect(isZero, name).toBe(false);
    }
  }));

describe('options and extra keys', () => {
  it('come along, and a state without entries starts the optimizer afresh', () =>
    onRanks(2, async (rank) => {
      const model = sharded(rank);
      const fresh = await gatherFullOptimStateDict(model, adam(model));
      const optimizer = adam(model);
      await train(model, optimizer, { rank, steps: [0] });
      optimizer.groups[1]!.lr = 0.125;
      const extra = { lossScale: 512, note: ['kept'] };
      const full = await sentToAll(
        rank,
        await gatherFullOptimStateDict(model, optimizer, { extra }),
      );
      const other = adam(model);
      expect(await loadFullOptimStateDict(model, other, full)).toEqual(extra);
      expect(other.groups.map(({ lr, weightDecay }) => [lr, weightDecay])).toEqual([
        [1e-2, 0.1],
        [0.125, 0],
      ]);
      const empty = await sentToAll(rank, fresh);
      expect(empty.state.size).toBe(0);
      await loadFullOptimStateDict(model, other, empty);
      expect((await localOptimStateDict(model, other)).flats.size).toBe(0);
      for (const { flat } of model.units) {
        for (const tensor of other.stateOf(flat)!.tensors.values()) {
          expect((await tensor.toArray()).every((value) => value === 0)).toBe(true);
        }
      }
    }));
});
