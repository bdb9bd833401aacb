// These tests check how parameters become flat ones, and which rank's values they have:
// flattenParameters, rank 0's initial values, replicas of shards, and instances of another process
// group.

import { FsdpConfigError, FullyShardedDataParallel } from '@shardweave/fsdp';
import { clipGradNorm, type Module, Sgd } from '@shardweave/nn';
import { Device, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  DIM,
  expectAsAlone,
  layer,
  onRanks,
  type Rank,
  rowsOf,
  Stack,
  trainAlone,
  training,
  trainOnce,
  weightsOf,
} from '../../../tooling/test-kit/index.ts';
import { expectEqualTraining, type Wrap, wrapIn } from './support/sharding.js';

const stack = (device: Device) => new Stack(device, [layer(device), layer(device)]);

function wrapped({ device, group }: Rank, module: Module = stack(device), options: object = {}) {
  return new FullyShardedDataParallel(module, { processGroup: group, name: 'net', ...options });
}

describe('flattenParameters', () => {
  it('false: each parameter is sharded on its own', () =>
    onRanks(2, async (rank) => {
      const model = wrapped(rank, undefined, { flattenParameters: false });
      const names = model.units.map(({ name }) => name);
      expect(names).toEqual(['net.0.weight', 'net.0.bias', 'net.1.weight', 'net.1.bias']);
    }));

  it('groups: one flat parameter each, and one for each parameter left', async () => {
    const groupsOf = (module: Module) => {
      const [a, b, c] = module.parameters() as [Tensor, Tensor, Tensor];
      return [
        { name: 'weights', params: [a, c, a] },
        { name: 'first', params: [b] },
      ];
    };
    await onRanks(2, async (rank) => {
      const module = stack(rank.device);
      const model = wrapped(rank, module, { flattenParameters: groupsOf(module) });
      expect(model.units.map(({ name, parameters }) => [name, parameters.length])).toEqual([
        ['net.weights', 2],
        ['net.first', 1],
        ['net.1.bias', 1],
      ]);
    });
    await expectEqualTraining(
      {
        build: (device, wrap) => {
          const module = stack(device);
          return wrap(module, { flattenParameters: groupsOf(module) });
        },
      },
      2,
    );
  });

  it.each([
    [
      'a parameter in two groups',
      (p: Tensor[]) => [
        { name: 'a', params: [p[0]!] },
        { name: 'b', params: [p[0]!] },
      ],
    ],
    [
      'two groups of one name',
      (p: Tensor[]) => [
        { name: 'a', params: [p[0]!] },
        { name: 'a', params: [p[1]!] },
      ],
    ],
    ['an empty group', () => [{ name: 'a', params: [] }]],
    ['a foreign parameter', (p: Tensor[]) => [{ name: 'a', params: [p[0]!.device.zeros([3])] }]],
  ])('refuses %s', (_, groups) =>
    onRanks(1, async (rank) => {
      const module = stack(rank.device);
      const flattenParameters = groups(module.parameters());
      expect(() => wrapped(rank, module, { flattenParameters })).toThrow(FsdpConfigError);
    }),
  );

  it('what is frozen when wrapped gets no gradient and no reduction', () =>
    onRanks(2, async (rank) => {
      const module = stack(rank.device);
      module.parameters()[0]!.requiresGrad = false;
      const reduceGroup = await rank.group.split(0);
      const model = wrapped(rank, module, { processGroupReduceScatter: reduceGroup });
      expect(model.units.map(({ name }) => name)).toEqual(['net', 'net.frozen']);
      await trainOnce(model, rowsOf(rank));
      expect(reduceGroup.stats()).toMatchObject({
        reduceScatters: 1,
        bytesSent: model.units[0]!.layout.shardLength * 4,
      });
      expect(model.units[1]!.flat.grad).toBeUndefined();
    }));
});

describe('initial values', () => {
  const weightsBySeed = (options: object) =>
    onRanks(3, async (rank) => {
      const device = new Device(rank.device.backend, { seed: rank.rank });
      const own = await weightsOf(stack(new Device(rank.device.backend, { seed: rank.rank })));
      const model = wrapped({ ...rank, device }, stack(device), options);
      return { own, sharded: await weightsOf(model) };
    });

  it('are those of rank 0', async () => {
    const ranks = await weightsBySeed({});
    expect(ranks[1]!.own).not.toEqual(ranks[0]!.own);
    for (const { sharded } of ranks) {
      expect(sharded).toEqual(ranks[0]!.own);
    }
  });

  it("are each rank's own without syncModuleStates", async () => {
    const ranks = await weightsBySeed({ syncModuleStates: false });
    const { own, sharded } = ranks[0]!;
    expect(sharded).not.toEqual(own);
    // Shards have 256 elements: rank 0's holds the first layer, and rank 1's the second.
    expect(sharded.get('0.weight')).toEqual(own.get('0.weight'));
    expect(sharded.get('1.weight')).toEqual(ranks[1]!.own.get('1.weight'));
  });

  it('an edit in place between wrapping and the first forward counts', () =>
    onRanks(2, async (rank) => {
      const model = wrapped(rank);
      const bias = model.namedParameters().find(([name]) => name === '0.bias')![1];
      rank.device.copyInto(bias, rank.device.tensor(new Float32Array(DIM).fill(5)));
      const weights = await weightsOf(model);
      expect(weights.get('0.bias')).toEqual(new Float32Array(DIM).fill(5));
    }));
});

it('replicas start from the values of the first, and train as one process', async () => {
  const program = training({
    build: (device, wrap: Wrap) => wrap(new Stack(device, [wrap(layer(device)), layer(device)])),
  });
  const plain = await trainAlone(program, {});
  const perRank = await onRanks(3, async ({ device, group, rank }) => {
    const processGroup = await group.split(rank);
    const wrap = wrapIn({ group: processGroup }, { replicateGroup: group });
    return program({
      device: rank === 0 ? device : new Device(device.backend, { seed: rank }),
      wrap: (module, options) => wrap(module, options),
      rows: { first: 4 * rank, count: 4 },
    });
  });
  expectAsAlone(perRank, plain);
});

describe('an instance of another process group', () => {
  it('keeps its gradients to itself, and clipping refuses the tree', async () => {
    const perRank = await onRanks(2, async (rank) => {
      const alone = await rank.group.split(rank.rank);
      const expert = new FullyShardedDataParallel(layer(rank.device), {
        processGroup: alone,
        name: 'expert',
      });
      const model = wrapped(rank, new Stack(rank.device, [layer(rank.device), expert]));
      const optimizer = new Sgd(model.parameters(), { lr: 0.5 });
      for (let step = 0; step < 2; step++) {
        await trainOnce(model, { first: 6 * rank.rank, count: 6 }, step);
        if (step === 1) {
          await expect(clipGradNorm(model, 1)).rejects.toThrow(FsdpConfigError);
        }
        await optimizer.step();
        optimizer.zeroGrad();
      }
      return weightsOf(model);
    });
    const [first, second] = perRank as [Map<string, Float32Array>, Map<string, Float32Array>];
    expect(first.get('0.weight')).toEqual(second.get('0.weight'));
    expect(first.get('1.weight')).not.toEqual(second.get('1.weight'));
  });
});
