// These tests check what is rounded where, for dtypes and divisions, compared with sums in f64.

import type { DdpOptions } from '@shardweave/ddp-buckets';
import { f16ToF32, f32ToF16 } from '@shardweave/dtypes';
import { Sgd } from '@shardweave/nn';
import { cast, mean, square, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { expectClose, inputs } from '../../../tooling/test-kit/index.ts';
import { CastNet } from './support/cast-net.js';
import { Bag, onRanks, pull, pulled, wrap } from './support/ranks.js';

const roundF16 = (x: number) => f16ToF32(f32ToF16(x));

/** Returns the reduced gradient of one f16 parameter to which rank r contributes values[r]. */
async function reducedF16(values: readonly number[], options: Partial<DdpOptions>) {
  const perRank = await onRanks(values.length, async (rank) => {
    const model = wrap(new Bag(rank.device, { a: [3, 'f16'] }), rank, options);
    await pull(model, values[rank.rank]!);
    return (await pulled(model)).a!;
  });
  expect(new Set(perRank).size).toBe(1);
  return perRank[0]!;
}

describe('divisions', () => {
  it('come after the sum by default: small gradients do not vanish', async () => {
    const tiny = 2 ** -24; // This is the smallest f16.
    expect(await reducedF16([tiny, tiny], {})).toBe(tiny);
    expect(await reducedF16([tiny, tiny], { gradientPredivideFactor: 4 })).toBe(0);
  });

  it('gradientPredivideFactor divides before, in the dtype that is sent: large sums do not overflow', async () => {
    const large = 60000;
    expect(await reducedF16([large, large], {})).toBe(Number.POSITIVE_INFINITY);
    const expected = roundF16(large);
    expect(await reducedF16([large, large], { gradientPredivideFactor: 2 })).toBe(expected);
  });

  it('allreduceAlwaysFp32 divides and adds in f32, and rounds once', async () => {
    const tiny = 2 ** -24;
    const large = 60000;
    const options = { allreduceAlwaysFp32: true };
    expect(await reducedF16([large, large], options)).toBe(roundF16(large));
    expect(await reducedF16([tiny, tiny], { ...options, gradientPredivideFactor: 4 })).toBe(tiny);
  });

  it.each([2, 3, 4])('average over %i ranks; without gradientAverage sum', async (worldSize) => {
    const ranks = Array.from({ length: worldSize }, (_, rank) => rank);
    const total = ranks.reduce((a, b) => a + 6 * (b + 1), 0);
    for (const predivide of [1, 2, worldSize]) {
      const factors = { gradientPredivideFactor: predivide };
      await onRanks(worldSize, async (rank) => {
        const options = { ...factors, gradientAverage: true };
        const averaged = wrap(new Bag(rank.device, { a: 3 }), rank, options);
        await pull(averaged, 6 * (rank.rank + 1));
        expect((await pulled(averaged)).a).toBeCloseTo(total / worldSize, 5);
        const summed = wrap(new Bag(rank.device, { a: 3 }), rank, {
          ...factors,
          gradientAverage: false,
        });
        await pull(summed, 6 * (rank.rank + 1));
        // The first division happens all the same, as in apex.
        expect((await pulled(summed)).a).toBeCloseTo(total / predivide, 5);
      });
    }
  });
});

describe('f16, bf16 and f32', () => {
  const spec = { a: 3, b: [7, 'f16'], c: [5, 'bf16'], d: 2, e: [1, 'bf16'] } as const;

  it.each([false, true])('travel apart, allreduceAlwaysFp32 %s', async (allreduceAlwaysFp32) => {
    await onRanks(2, async (rank) => {
      const sent: [string, number][] = [];
      rank.group.onTrace = ({ tag, bytes }) =>
        void (tag?.startsWith('bucket') && sent.push([tag, bytes]));
      const model = wrap(new Bag(rank.device, spec), rank, { allreduceAlwaysFp32 });
      await pull(model, 1 + rank.rank);
      expect(model.buckets).toEqual([['b'], ['e', 'c'], ['d', 'a']]);
      expect(await pulled(model)).toEqual({ a: 1.5, b: 3, c: 4.5, d: 6, e: 7.5 });
      const size = allreduceAlwaysFp32 ? 4 : 2;
      expect(sent).toEqual([
        ['bucket 0', 128 * size],
        ['bucket 1', 2 * 128 * size],
        ['bucket 2', 2 * 128 * 4],
      ]);
    });
  });
});

describe('masters in f32 beside a model in f16, ranks seeded differently', () => {
  it('stay equal over 500 steps on every rank', async () => {
    const perRank = await onRanks(2, async (rank) => {
      const { device } = rank;
      const model = wrap(new CastNet(device, 'f16', { seed: 100 * rank.rank }), rank);
      await model.initialize(); // All get rank 0's values before masters are made of them.
      const masters = model.parameters().map((parameter) =>
        device.scope(() => {
          const master = cast(parameter, 'f32').keep();
          master.requiresGrad = true;
          return master;
        }),
      );
      const optimizer = new Sgd(masters, { lr: 0.05 });
      for (let step = 0; step < 500; step++) {
        await device.scope(async () => {
          const x = inputs(device, { first: 3 * (2 * step + rank.rank), count: 3 });
          await mean(square(await model.call(x))).backward();
          masters.forEach((master, i) => {
            master.grad = cast(model.parameters()[i]!.grad!, 'f32').keep();
          });
          await optimizer.step();
          masters.forEach((master, i) => {
            device.copyInto(model.parameters()[i]!, master);
          });
          optimizer.zeroGrad();
          model.zeroGrad();
        });
      }
      const read = (tensors: readonly Tensor[]) => Promise.all(tensors.map((t) => t.toArray()));
      return { model: await read(model.parameters()), masters: await read(masters) };
    });
    expect(perRank[1]).toEqual(perRank[0]);
    const [{ model, masters } = { model: [], masters: [] }] = perRank;
    masters.forEach((master, i) => {
      expectClose(master, model[i]!, 5e-3);
    });
    const moved = masters[0]!.some((value, j) => Math.abs(value - Math.sin(1 + j) / 2) > 0.05);
    expect(moved).toBe(true);
  });
});
