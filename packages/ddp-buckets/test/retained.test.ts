// With retainAllreduceBuffers gradients are views into the reduced buckets, without a copy.

import { Sgd } from '@shardweave/nn';
import { describe, expect, it } from 'vitest';
import { Bag, onBags, onRanks, pull, pulled, wrap } from './support/ranks.js';

const SPEC = { a: 3, b: 130, c: [5, 'f16'] } as const;
const OPTIONS = { retainAllreduceBuffers: true };

describe('gradients', () => {
  it('are views of allreduceBuffers, in both dtypes, odd sizes too', async () => {
    await onBags(2, SPEC, OPTIONS, async ({ rank, bag, model }) => {
      for (let step = 0; step < 2; step++) {
        model.zeroGrad();
        await pull(model, 2 + 2 * rank.rank);
        expect(await pulled(model)).toEqual({ a: 3, b: 6, c: 9 });
        expect(model.buckets).toEqual([['c'], ['b', 'a']]);
        const [half, full] = model.allreduceBuffers;
        expect(bag.get('c').grad!.storage).toBe(half!.storage);
        expect(bag.get('a').grad!.storage).toBe(full!.storage);
        expect(bag.get('b').grad!.storage).toBe(full!.storage);
        expect([half!.dtype, half!.size]).toEqual(['f16', 128]);
        // These are b and a, with their padding.
        expect([full!.dtype, full!.size]).toEqual(['f32', 384]);
        const values = [...(await full!.toArray())];
        expect(values).toEqual([
          ...Array(130).fill(6),
          ...Array(126).fill(0),
          3,
          3,
          3,
          ...Array(125).fill(0),
        ]);
      }
    });
  });

  it('gradients of 16 bits that are sent in f32 are views of the rounded buckets', async () => {
    await onRanks(2, async (rank) => {
      const bag = new Bag(rank.device, { a: [3, 'f16'], b: [130, 'f16'], c: [5, 'bf16'] });
      const options = { ...OPTIONS, allreduceAlwaysFp32: true, gradientPredivideFactor: 2 };
      const model = wrap(bag, rank, options);
      for (let step = 0; step < 3; step++) {
        if (step !== 2) {
          model.zeroGrad();
        }
        await pull(model, 2 + 2 * rank.rank);
        const times = step === 2 ? 2 : 1; // The last step adds to the one before.
        expect(await pulled(model)).toEqual({ a: 3 * times, b: 6 * times, c: 9 * times });
        for (const name of ['a', 'b', 'c']) {
          expect(bag.get(name).grad!.dtype).toBe(bag.get(name).dtype);
        }
        if (times === 2) {
          continue; // The gradients still view the buffers of the step before.
        }
        const number = model.buckets.findIndex((paths) => paths.includes('b'));
        expect(model.allreduceBuffers[number]!.storage).toBe(bag.get('b').grad!.storage);
        expect(rank.device.memory().live.staging).toBe(0);
      }
    });
  });

  it('can be stepped with, and are freed by zeroGrad, buffers too', async () => {
    await onBags(2, { a: 3, b: 130 }, OPTIONS, async ({ rank, bag, model }) => {
      const optimizer = new Sgd(model.parameters(), { lr: 0.5 });
      await pull(model, 2 + 2 * rank.rank);
      await optimizer.step();
      expect([...(await bag.get('a').toArray())]).toEqual([-1.5, -1.5, -1.5]);
      expect(rank.device.memory().live.gradient).toBe(384 * 4);
      optimizer.zeroGrad();
      expect(rank.device.memory().live.gradient).toBe(0);
    });
  });

  it('gradients of an earlier backward are added to, in their own buffer', async () => {
    await onBags(2, { a: 3, b: 130 }, OPTIONS, async ({ rank, bag, model }) => {
      await pull(model, 2 + 2 * rank.rank);
      const { storage } = bag.get('a').grad!;
      await pull(model, 2 + 2 * rank.rank);
      expect(bag.get('a').grad!.storage).toBe(storage);
      expect(await pulled(model)).toEqual({ a: 6, b: 12 });
    });
  });
});

it('no view outlives buckets that are made anew', async () => {
  await onBags(2, { a: 3, b: 130 }, OPTIONS, async ({ rank, bag, model }) => {
    await pull(model, 1);
    bag.get('b').requiresGrad = false;
    await pull(model, 1 + 2 * rank.rank);
    expect(await pulled(model)).toEqual({ a: 3, b: 2 });
    model.zeroGrad();
    expect(rank.device.memory().live.gradient).toBe(0);
  });
});
