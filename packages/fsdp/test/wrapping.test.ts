// These tests check what can be wrapped and how: inner instances without a root, containers,
// modules with nothing to share, more ranks than blocks of elements, and what is refused.

import { FsdpConfigError, FullyShardedDataParallel } from '@shardweave/fsdp';
import {
  AdamW,
  gradNorm,
  type Module,
  packParameters,
  Sequential,
  stateDict,
} from '@shardweave/nn';
import { add, Device, type Tensor, tanh } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  expectClose,
  inputs,
  layer,
  lossOf,
  moduleOf,
  onRanks,
  Stack,
  trainOnce,
  weightsOf,
} from '../../../tooling/test-kit/index.ts';
import { expectEqualTraining } from './support/sharding.js';

describe.each([1, 2, 3])('world size %i: training equals the plain module', (worldSize) => {
  it('two sibling roots equal the plain module', async () => {
    await expectEqualTraining(
      { build: (device, wrap) => new Stack(device, [wrap(layer(device)), wrap(layer(device))]) },
      worldSize,
    );
  });

  it('sibling roots that nest units of their own equal the plain module', async () => {
    const pair = (device: Device, wrap: (module: Module) => Module) =>
      wrap(new Stack(device, [wrap(layer(device)), wrap(layer(device)), layer(device)]));
    await expectEqualTraining(
      { build: (device, wrap) => new Stack(device, [pair(device, wrap), pair(device, wrap)]) },
      worldSize,
    );
  });

  it('a wrapped module that owns nothing equals the plain one', async () => {
    const squash = (device: Device) => moduleOf(device, {}, (_, x: Tensor) => tanh(x));
    await expectEqualTraining(
      {
        build: (device, wrap) =>
          wrap(new Stack(device, [wrap(layer(device)), wrap(squash(device)), layer(device)])),
      },
      worldSize,
    );
  });

  it('a root of wrapped modules only, wrapped twice, equals the plain one', async () => {
    await expectEqualTraining(
      { build: (device, wrap) => wrap(wrap(new Stack(device, [wrap(layer(device))]))) },
      worldSize,
    );
  });

  it('outputs in arrays, maps, objects and class instances equal the plain ones', async () => {
    class Pair {
      readonly first: Tensor;
      readonly others: Map<string, readonly Tensor[]>;
      constructor(first: Tensor, second: Tensor) {
        this.first = first;
        this.others = new Map([['second', [second]]]);
      }
    }
    const two = (device: Device) =>
      moduleOf(device, { linear: layer(device) }, async ({ linear }, x: Tensor) => {
        const y = await linear.call(x);
        return { pair: new Pair(y, tanh(y)) };
      });
    const joined = (device: Device, two: Module) =>
      moduleOf(device, { two }, async ({ two }, x: Tensor) => {
        const { pair } = await two.call(x);
        expect(pair).toBeInstanceOf(Pair);
        return add(pair.first, pair.others.get('second')[0]);
      });
    await expectEqualTraining(
      { build: (device, wrap) => wrap(joined(device, wrap(two(device)))) },
      worldSize,
    );
  });
});

it('trains with more ranks than blocks of 128 elements, some of them all padding', async () => {
  await onRanks(4, async ({ device, group, rank }) => {
    const model = new FullyShardedDataParallel(layer(device), { processGroup: group });
    const lengths = model.parameters().map(({ piece }) => piece!.length);
    expect(lengths.some((length) => length > 0)).toBe(rank < 2);
  });
  await expectEqualTraining({ build: (device, wrap) => wrap(layer(device)) }, 4);
});

it('a module without any parameter has an empty state and norm 0', () =>
  onRanks(2, async ({ device, group, rank }) => {
    const nothing = moduleOf(device, {}, (_, x: Tensor) => tanh(x));
    const model = new FullyShardedDataParallel(nothing, { processGroup: group });
    const x = inputs(device, { first: rank, count: 1 }).keep();
    expect((await model.call(x)).shape).toEqual(x.shape);
    expect(await stateDict(model)).toEqual(new Map());
    expect(await gradNorm(model)).toBe(0);
    model.dispose();
  }));

it('an optimizer made before wrapping steps the shards', async () => {
  const [plain] = await onRanks(1, async ({ device }) => {
    const model = layer(device);
    const optimizer = new AdamW(model.parameters(), { lr: 0.1 });
    await trainOnce(model, { first: 0, count: 2 });
    await optimizer.step();
    return weightsOf(model);
  });
  await onRanks(2, async ({ device, group, rank }) => {
    const bare = layer(device);
    const optimizer = new AdamW(bare.parameters(), { lr: 0.1 });
    const model = new FullyShardedDataParallel(bare, { processGroup: group });
    await trainOnce(model, { first: rank, count: 1 });
    await optimizer.step();
    expectClose(await weightsOf(model), plain!);
  });
});

it('gradientPredivideFactor changes nothing but rounding, also below 1 and above the world size', async () => {
  for (const gradientPredivideFactor of [0.5, 1, 2, 8]) {
    const fsdp = { gradientPredivideFactor };
    await expectEqualTraining({ fsdp, build: (device, wrap) => wrap(layer(device)) }, 2);
    await expectEqualTraining({ fsdp, build: (device, wrap) => wrap(layer(device)) }, 1);
  }
});

describe('refuses with FsdpConfigError', () => {
  it('a parameter packed into another flat', () =>
    onRanks(2, async ({ device, group }) => {
      const module = layer(device);
      packParameters(module);
      expect(() => new FullyShardedDataParallel(module, { processGroup: group })).toThrow(
        FsdpConfigError,
      );
    }));

  it('a parameter on another device than the module', () =>
    onRanks(1, async ({ device, group }) => {
      const other = new Device(device.backend);
      const strangers = layer(other);
      const borrowing = moduleOf(device, { weight: strangers.weight }, (_, x: Tensor) => x);
      const wrap = () => new FullyShardedDataParallel(borrowing, { processGroup: group });
      expect(wrap).toThrow(FsdpConfigError);
      expect(wrap).toThrow(/on the module's device, got f32 'weight'/);
      other.dispose();
    }));

  it('contradicting options', () =>
    onRanks(2, async ({ device, group }) => {
      const wrap = (options: object) => () =>
        new FullyShardedDataParallel(layer(device), { processGroup: group, ...options });
      expect(wrap({ fp32ReduceScatter: true })).toThrow(FsdpConfigError);
      expect(wrap({ computeDType: 'bf16' })).toThrow(FsdpConfigError);
      expect(wrap({ gradientPredivideFactor: 0 })).toThrow(FsdpConfigError);
      const alone = await group.split(group.rank);
      expect(wrap({ processGroupReduceScatter: alone })).toThrow(FsdpConfigError);
    }));
});

it('dispose of a plain module frees the sharded ones inside it', () =>
  onRanks(2, async ({ device, group, rank }) => {
    const outer = new Sequential(device, [
      layer(device),
      new FullyShardedDataParallel(layer(device), { processGroup: group }),
    ]);
    await trainOnce(outer, { first: rank, count: 1 });
    expect(device.memory().live.parameter).toBeGreaterThan(0);
    outer.dispose();
    outer.dispose();
    expect(device.memory().live.total).toBe(0);
  }));

it('dispose frees everything, twice does nothing more', () =>
  onRanks(2, async ({ device, group, rank }) => {
    const model = new FullyShardedDataParallel(layer(device), { processGroup: group });
    await trainOnce(model, { first: rank, count: 1 });
    await device.noGrad(() =>
      device.scope(async () =>
        lossOf(await model.call(inputs(device, { first: 0, count: 1 }))).item(),
      ),
    );
    model.dispose();
    expect(device.memory().live.total).toBe(0);
    model.dispose();
    expect(device.memory().live.total).toBe(0);
  }));
