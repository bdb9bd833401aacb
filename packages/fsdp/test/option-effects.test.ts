// Some options must have an effect. They decide what is kept between forward and backward, who
// casts inputs, whose optimizer state is collected, and what gradients are divided by.

import { type FsdpOptions, FullyShardedDataParallel } from '@shardweave/fsdp';
import {
  defaultPredivide,
  gatherFullOptimStateDict,
  getShardFromOptimStateDict,
  localOptimStateDict,
} from '@shardweave/fsdp/fairscale';
import { AdamW, Module } from '@shardweave/nn';
import { cast, type DType, mul, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  DIM,
  inputs,
  layer,
  lossOf,
  onRanks,
  type Rank,
  rowsOf,
  Stack,
  trainOnce,
} from '../../../tooling/test-kit/index.ts';
import { backwardOf, Dot, Dots } from './support/dots.js';
import { wrapIn } from './support/sharding.js';

describe('disableReshardOnRoot', () => {
  /** Returns a root with a layer of its own between two instances. */
  function net({ device, group }: Rank, options: Partial<FsdpOptions>) {
    const wrap = wrapIn({ group }, options);
    const [first, last] = [wrap(layer(device), 'first'), wrap(layer(device), 'last')];
    return wrap(new Stack(device, [first, layer(device), last]), 'root');
  }

  /**
   * Returns the instances whose parameters are present after a forward, and the gathers of a whole
   * step.
   */
  async function seen(rank: Rank, options: Partial<FsdpOptions>) {
    const model = net(rank, options);
    await model.initialize();
    const before = rank.group.stats().allGathers;
    const rows = rowsOf(rank);
    const present = await rank.device.scope(async () => {
      const loss = lossOf((await model.call(inputs(rank.device, rows))) as Tensor);
      const names = model
        .instances()
        .filter(({ units }) => units[0]!.full.isPresent)
        .map(({ name }) => name);
      await loss.backward();
      return names;
    });
    return { present, gathers: rank.group.stats().allGathers - before };
  }

  it.each([
    { options: {}, present: ['root'], gathers: 5 },
    { options: { disableReshardOnRoot: true }, present: ['root'], gathers: 5 },
    { options: { disableReshardOnRoot: false }, present: [], gathers: 6 },
    {
      options: { disableReshardOnRoot: false, reshardAfterForward: false },
      present: ['root', 'first', 'last'],
      gathers: 3,
    },
  ])('$options: $present stay after forward', ({ options, present, gathers }) =>
    onRanks(2, async (rank) => {
      expect(await seen(rank, options)).toEqual({ present, gathers });
    }),
  );

  it('false frees the root after an evaluation too, true keeps it for the next forward', () =>
    onRanks(2, async (rank) => {
      const { device } = rank;
      for (const disableReshardOnRoot of [true, false]) {
        const model = net(rank, { disableReshardOnRoot });
        const evaluate = () =>
          device.noGrad(() =>
            device.scope(
              async () => void (await model.call(inputs(device, { first: 0, count: 1 }))),
            ),
          );
        await evaluate();
        expect(model.units[0]!.full.storage.isFilled).toBe(disableReshardOnRoot);
        const before = rank.group.stats().allGathers;
        await evaluate();
        expect(rank.group.stats().allGathers - before).toBe(disableReshardOnRoot ? 2 : 3);
      }
    }));
});

describe('an instance below the root', () => {
  /** This module, of any dtype, notes the dtype of its input. */
  class Noting extends Module<[x: Tensor], Tensor> {
    readonly weight = this.parameter('weight', this.device.full([DIM], 0.5));
    seen: DType | undefined;
    forward(x: Tensor): Tensor {
      this.seen = x.dtype;
      return mul(x, cast(this.weight, x.dtype));
    }
  }

  it.each([
    {
      what: 'a mixed one keeps the f32 that an f32 root passes on',
      root: {},
      inner: { mixedPrecision: true, computeDType: 'bf16' },
      seen: ['f32', 'f32'],
    },
    {
      what: 'a mixed one keeps what a root of another dtype passes on',
      root: { mixedPrecision: true, computeDType: 'f16' },
      inner: { mixedPrecision: true, computeDType: 'bf16' },
      seen: ['f16', 'f16'],
    },
    {
      what: 'an f32 island below a mixed root asks for f32',
      root: { mixedPrecision: true, computeDType: 'bf16' },
      inner: { forceInputToFp32: true },
      seen: ['bf16', 'f32'],
    },
  ] as const)('$what', ({ root, inner, seen }) =>
    onRanks(2, async ({ device, group }) => {
      const [outer, island] = [new Noting(device), new Noting(device)];
      const model = wrapIn(
        { group },
        root,
      )(
        new Stack(device, [
          outer,
          new FullyShardedDataParallel(island, { processGroup: group, ...inner }),
        ]),
      );
      await device.scope(async () => void (await model.call(device.full([DIM], 1 / 3))));
      expect([outer.seen, island.seen]).toEqual(seen);
    }),
  );
});

describe('noBroadcastOptimState', () => {
  /** Runs one step of a root over all ranks, around an instance over a given group. */
  async function stepped(
    rank: Rank,
    inner: Partial<FsdpOptions>,
    { isAlone }: { readonly isAlone: boolean },
  ) {
    const { device, group } = rank;
    const innerGroup = isAlone ? await group.split(rank.rank) : group;
    const part = new FullyShardedDataParallel(layer(device), {
      processGroup: innerGroup,
      ...inner,
    });
    const model = wrapIn({ group })(new Stack(device, [layer(device), part]));
    const optimizer = new AdamW(model.parameters(), { lr: 0.1 });
    await trainOnce(model, rowsOf(rank));
    await optimizer.step();
    return { model, optimizer };
  }

  it.each<{ isAlone: boolean; options: Partial<FsdpOptions>; isCollected: boolean }>([
    { isAlone: false, options: { noBroadcastOptimState: true }, isCollected: false },
    { isAlone: false, options: { noBroadcastOptimState: false }, isCollected: true },
    { isAlone: false, options: {}, isCollected: true },
    { isAlone: true, options: { noBroadcastOptimState: true }, isCollected: false },
    { isAlone: true, options: { noBroadcastOptimState: false }, isCollected: true },
    { isAlone: true, options: {}, isCollected: false },
  ])(
    'an instance in a group of one rank: $isAlone, $options, collected: $isCollected',
    async (cell) => {
      const { isAlone, options, isCollected } = cell;
      await onRanks(2, async (rank) => {
        const { model, optimizer } = await stepped(rank, options, { isAlone });
        const full = await gatherFullOptimStateDict(model, optimizer);
        if (rank.rank === 0) {
          const inner = ['1.weight', '1.bias'];
          expect(full!.uncollected).toEqual(isCollected ? [] : inner);
          expect([...full!.state.keys()]).toEqual([
            '0.weight',
            '0.bias',
            ...(isCollected ? inner : []),
          ]);
          // State that stays on its rank isn't cut out of a whole state either.
          const shard = getShardFromOptimStateDict(model, full!);
          expect(shard.flats.size).toBe(isCollected ? 2 : 1);
        }
        // Each rank's own part still has it.
        expect((await localOptimStateDict(model, optimizer)).flats.size).toBe(2);
      });
    },
  );
});

describe('gradientPredivideFactor', () => {
  it.each([
    [1, 1],
    [2, 2],
    [3, 2],
    [4, 2],
    [5, 2],
    [6, 4],
    [7, 2],
    [8, 4],
    [12, 4],
    [16, 4],
    [32, 8],
    [64, 8],
    [128, 16],
  ])('the factor for %i ranks divides by %i before the sum', async (worldSize, predivide) => {
    expect(defaultPredivide(worldSize)).toBe(predivide);
    // Construction communicates nothing, so rank 0's end alone shows what all ranks do.
    await onRanks(worldSize, async ({ device, group, rank }) => {
      if (rank > 0) {
        return;
      }
      const model = new FullyShardedDataParallel(layer(device), { processGroup: group });
      expect(model.divideFactors).toEqual({ predivide, postdivide: worldSize / predivide });
    });
  });

  it('counts replicas as ranks, and takes a factor that is given', () =>
    onRanks(8, async ({ device, group, rank }) => {
      const processGroup = await group.split(rank >> 1);
      const replicateGroup = await group.split(rank & 1);
      const groups = { processGroup, replicateGroup };
      const model = new FullyShardedDataParallel(layer(device), groups);
      expect(model.divideFactors).toEqual({ predivide: 4, postdivide: 2 });
      const given = new FullyShardedDataParallel(layer(device), {
        ...groups,
        gradientPredivideFactor: 0.5,
      });
      expect(given.divideFactors).toEqual({ predivide: 0.5, postdivide: 16 });
    }));

  it('keeps a sum of 16 ranks in the range of f16, which it would leave without a factor', async () => {
    const first = async (options: Partial<FsdpOptions>) => {
      const perRank = await onRanks(16, async ({ device, group }) => {
        const model = wrapIn(
          { group },
          { mixedPrecision: true, computeDType: 'f16', ...options },
        )(new Dots(device, [new Dot(device, 4, 0)]));
        await backwardOf(model, 4, 16_000);
        return (await model.units[0]!.flat.grad!.toArray())[0]!;
      });
      return perRank[0]!;
    };
    expect(await first({})).toBe(16_000); // 16 x 16,000 / 4 is below the limit of 65,504.
    expect(await first({ gradientPredivideFactor: 1 })).toBe(Number.POSITIVE_INFINITY);
  });
});
