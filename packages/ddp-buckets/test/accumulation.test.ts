// A step has several backwards, of which each is reduced or only the last one.

import { checkpoint, Linear } from '@shardweave/nn';
import { add, mul, sum, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { moduleOf } from '../../../tooling/test-kit/index.ts';
import { Bag, onBags, onRanks, pull, pulled, wrap } from './support/ranks.js';

const AB = { a: 3, b: 200 };

describe.each([{ retainAllreduceBuffers: false }, { retainAllreduceBuffers: true }])(
  '%o',
  (mode) => {
    const options = { ...mode, messageSize: 1 };

    it('backwards without zeroGrad add up averages, each reduced once', async () => {
      await onBags(3, AB, { ...options, gradientAverage: false }, async ({ rank, model }) => {
        await pull(model, 1 + rank.rank);
        expect(await pulled(model)).toEqual({ a: 6, b: 12 });
        await pull(model, 10 * rank.rank);
        expect(await pulled(model)).toEqual({ a: 36, b: 72 });
      });
    });

    it('noSync adds up on each rank and sends nothing; the next backward reduces the sum', async () => {
      await onBags(2, AB, options, async ({ rank, model }) => {
        await pull(model, 0);
        model.zeroGrad();
        const { allReduces } = rank.group.stats();
        await model.noSync(async () => {
          await pull(model, 1 + rank.rank);
          await pull(model, 10 * rank.rank);
        });
        expect(rank.group.stats().allReduces).toBe(allReduces);
        expect(await pulled(model)).toEqual(rank.rank === 0 ? { a: 1, b: 2 } : { a: 12, b: 24 });
        await pull(model, 100 * rank.rank);
        expect(await pulled(model)).toEqual({ a: 56.5, b: 113 });
        await pull(model, rank.rank); // The local sum was cleared, so it isn't reduced twice.
        expect(await pulled(model)).toEqual({ a: 57, b: 114 });
      });
    });

    it('disableAllreduce and enableAllreduce do the same, forward by forward', async () => {
      await onBags(2, AB, options, async ({ rank, model }) => {
        await model.initialize();
        const { allReduces, allGathers } = rank.group.stats();
        model.disableAllreduce();
        await pull(model, 1 + rank.rank);
        await pull(model, 1 + rank.rank);
        expect(rank.group.stats()).toMatchObject({ allReduces, allGathers });
        expect(model.activeParams).toEqual([]); // Nothing is recorded either.
        expect((await pulled(model)).a).toBe(2 + 2 * rank.rank);
        model.enableAllreduce();
        await pull(model, 1 + rank.rank);
        expect(await pulled(model)).toEqual({ a: 4.5, b: 9 });
      });
    });

    it('what was reduced before a noSync stays apart from what was not', async () => {
      await onBags(2, AB, { ...options, gradientAverage: false }, async ({ rank, model }) => {
        await pull(model, 1 + rank.rank);
        await model.noSync(() => pull(model, 10 * (1 + rank.rank)));
        expect(await pulled(model)).toEqual({ a: 3, b: 6 });
        await pull(model, 100 * (1 + rank.rank));
        expect(await pulled(model)).toEqual({ a: 333, b: 666 });
      });
    });

    it('zeroGrad drops what a noSync has added up, shown or not', async () => {
      await onBags(2, AB, options, async ({ rank, model }) => {
        await model.noSync(() => pull(model, 7));
        model.zeroGrad();
        await pull(model, 1 + rank.rank);
        await model.noSync(() => pull(model, 7));
        model.zeroGrad();
        expect(rank.device.memory().live.gradient).toBe(0);
        await pull(model, 1 + rank.rank);
        expect(await pulled(model)).toEqual({ a: 1.5, b: 3 });
      });
    });

    it('two losses over one forward, and a retained graph, are reduced each', async () => {
      await onRanks(2, async (rank) => {
        const { device } = rank;
        const model = wrap(new Bag(device, AB), rank, options);
        for (let step = 0; step < 2; step++) {
          model.zeroGrad();
          await device.scope(async () => {
            const total: Tensor = await model.call(1 + rank.rank);
            const twice = mul(total, device.full([1], 2));
            await twice.backward({ retainGraph: true });
            expect(await pulled(model)).toEqual({ a: 3, b: 6 });
            await total.backward({ retainGraph: true });
            await total.backward();
          });
          expect(await pulled(model)).toEqual({ a: 6, b: 12 });
        }
      });
    });

    it('several forwards before one backward are one reduction', async () => {
      await onRanks(2, async (rank) => {
        const { device } = rank;
        const model = wrap(new Bag(device, AB), rank, options);
        for (let step = 0; step < 2; step++) {
          model.zeroGrad();
          const before = rank.group.stats().allReduces;
          await device.scope(async () => {
            const first: Tensor = await model.call(1 + rank.rank);
            await add(first, await model.call(10)).backward();
          });
          expect(await pulled(model)).toEqual({ a: 11.5, b: 23 });
          expect(rank.group.stats().allReduces - before).toBe(2); // There is one for each bucket.
        }
      });
    });
  },
);

it('an inner noSync leaves the outer one as it was', async () => {
  await onBags(2, AB, {}, async ({ rank, model }) => {
    await model.initialize();
    const { allReduces } = rank.group.stats();
    await model.noSync(async () => {
      await model.noSync(() => pull(model, 1 + rank.rank));
      await pull(model, 10);
    });
    expect(rank.group.stats().allReduces).toBe(allReduces);
    await pull(model, 100);
    expect(await pulled(model)).toEqual({ a: 111.5, b: 223 });
  });
});

it('parameters that get one gradient have sums of their own, which nothing outlives', async () => {
  await onRanks(2, async (rank) => {
    const { device } = rank;
    const ab = { a: device.zeros([3]), b: device.zeros([3]) };
    const model = wrap(
      moduleOf(device, ab, ({ a, b }) => sum(add(a, b))),
      rank,
    );
    const run = () => device.scope(async () => (await model.call()).backward());
    for (let step = 0; step < 2; step++) {
      await model.noSync(async () => {
        await run();
        await run();
        await run();
      });
      expect(await pulled(model)).toEqual({ a: 3, b: 3 });
      await run();
      expect(await pulled(model)).toEqual({ a: 4, b: 4 });
      expect(device.memory().live.gradient).toBe(2 * 12);
      model.zeroGrad();
      expect(device.memory().live.gradient).toBe(0);
    }
  });
});

it('a gradient that was replaced outside is not taken for a local sum', async () => {
  await onBags(2, AB, {}, async ({ rank, model }) => {
    await model.noSync(() => pull(model, 7));
    for (const parameter of model.parameters()) {
      parameter.grad!.dispose();
      parameter.grad = undefined;
    }
    await pull(model, 1 + rank.rank);
    expect(await pulled(model)).toEqual({ a: 1.5, b: 3 });
  });
});

it('a gradient that was put in the place of a local sum gets the next one added', async () => {
  await onBags(2, AB, {}, async ({ rank, model }) => {
    await model.noSync(() => pull(model, 7));
    for (const parameter of model.parameters()) {
      parameter.grad!.dispose();
      parameter.grad = rank.device.full(parameter.shape, 100).keep();
    }
    await pull(model, 1 + rank.rank);
    expect(await pulled(model)).toEqual({ a: 101.5, b: 103 });
  });
});

it.each([{ findUnusedParameters: true }, { delayAllreduce: true }])(
  'what noSync left of a parameter that the last backward misses is reduced, %j',
  async (options) => {
    await onBags(2, AB, options, async ({ rank, model }) => {
      await pull(model, 0);
      model.zeroGrad();
      await model.noSync(() => pull(model, 1 + rank.rank));
      await pull(model, 10, ['a']);
      expect(await pulled(model)).toEqual({ a: 11.5, b: 3 });
    });
  },
);

it('a checkpointed module is reduced as a plain one', async () => {
  await onRanks(2, async (rank) => {
    const bag = new Bag(rank.device, AB);
    const model = wrap(checkpoint(bag), rank, { messageSize: 1 });
    for (let step = 0; step < 2; step++) {
      model.zeroGrad();
      await pull(model, 1 + rank.rank);
      expect(await pulled(bag)).toEqual({ a: 1.5, b: 3 });
    }
  });
});

it('a layer that writes its gradient in place may be used twice, after a noSync too', async () => {
  await onRanks(2, async (rank) => {
    const { device } = rank;
    const linear = new Linear(device, { inFeatures: 4, outFeatures: 5, bias: false });
    const model = wrap(linear, rank);
    const run = (factor: number) =>
      device.scope(async () => {
        const x = (value: number) => device.full([1, 4], value);
        const twice = add(await model.call(x(factor)), await model.call(x(1000 * factor)));
        await sum(twice).backward();
      });
    await run(1 + rank.rank);
    model.zeroGrad();
    await model.noSync(() => run(1 + rank.rank));
    await run(10 * (1 + rank.rank));
    expect(await pulled(model)).toEqual({ weight: 16.5 * 1001 });
  });
});
