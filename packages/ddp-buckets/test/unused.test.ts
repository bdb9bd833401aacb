// A backward does not reach these parameters, or they come late, or only some ranks use them.

import { DdpUnusedParameterError } from '@shardweave/ddp-buckets';
import { add, type Device, mul, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { moduleOf } from '../../../tooling/test-kit/index.ts';
import { Bag, onBags, onRanks, pull, pulled, wrap } from './support/ranks.js';

const ABC = { a: 3, b: 5, c: 200 };

/** Makes a module that multiplies by its parameter, 2, or passes its input on. */
const passage = (device: Device) =>
  moduleOf(device, { p: device.full([1], 2) }, ({ p }, x: Tensor, isUsing: boolean) =>
    isUsing ? mul(x, p) : add(x, device.zeros([1])),
  );

describe('without findUnusedParameters', () => {
  it('one that is not reached is an error that names it, on every rank, and nobody waits', async () => {
    const errors = await onBags(3, ABC, {}, async ({ rank, model }) => {
      await pull(model, 1);
      const used = rank.rank === 1 ? ['a', 'c'] : undefined;
      return pull(model, 1, used).catch((error: unknown) => error as Error);
    });
    expect(errors[1]).toBeInstanceOf(DdpUnusedParameterError);
    expect(errors[1]).toMatchObject({ code: 'DDP_UNUSED_PARAMETERS', parameters: ['b'] });
    expect(errors[1]!.message).toMatch(
      /rank 1\/3 .* got none for b\. .*findUnusedParameters: true/,
    );
    for (const rank of [0, 2]) {
      expect(errors[rank]).toMatchObject({ code: 'ABORTED', originRank: 1 });
      expect(errors[rank]!.message).toContain('got none for b');
    }
  });

  it('one with a gradient of an earlier backward that was not reduced is fine', async () => {
    await onBags(2, ABC, {}, async ({ rank, model }) => {
      await model.noSync(() => pull(model, 1 + rank.rank));
      await pull(model, 10 * (1 + rank.rank), ['a']);
      expect(await pulled(model)).toEqual({ a: 16.5, b: 3, c: 4.5 });
    });
  });
});

describe('findUnusedParameters', () => {
  const options = { findUnusedParameters: true, messageSize: 1 };

  it('counts zeros where a rank does not use one, on every rank', async () => {
    await onBags(2, ABC, options, async ({ rank, model }) => {
      for (const step of [1, 2, 3]) {
        model.zeroGrad();
        await pull(model, step, rank.rank === 0 ? ['a', 'b'] : ['c', 'a']);
        expect(await pulled(model)).toEqual({ a: step, b: step, c: 1.5 * step });
      }
    });
  });

  it('leaves the gradient of one that no rank uses as it is', async () => {
    await onBags(2, ABC, options, async ({ rank, model }) => {
      await pull(model, 1 + rank.rank, ['a']);
      expect(await pulled(model)).toEqual({ a: 1.5, b: undefined, c: undefined });
      await pull(model, 1 + rank.rank);
      await pull(model, 1 + rank.rank, ['b', 'a']);
      expect(await pulled(model)).toEqual({ a: 4.5, b: 6, c: 4.5 });
    });
  });

  it('counts zeros whatever was in the memory of its gradient, with gaps in buckets or without', async () => {
    for (const spec of [{ a: 128, b: 256 }, ABC]) {
      await onBags(2, spec, { findUnusedParameters: true }, async ({ rank, model }) => {
        await pull(model, 1000);
        model.zeroGrad();
        await pull(model, 2, rank.rank === 0 ? ['a'] : ['a', 'b']);
        expect(await pulled(model)).toMatchObject({ a: 2, b: 2 });
      });
    }
  });

  it('reduces one that first appears late', async () => {
    await onBags(2, ABC, options, async ({ rank, model }) => {
      await pull(model, 1, ['a', 'c']);
      expect(model.buckets).toEqual([['c'], ['a'], ['b']]);
      model.zeroGrad();
      await pull(model, 1 + rank.rank);
      expect(await pulled(model)).toEqual({ a: 1.5, b: 3, c: 4.5 });
    });
  });

  it('takes part where a rank uses nothing at all', async () => {
    await onBags(2, { ...ABC, always: 1 }, options, async ({ rank, model }) => {
      await pull(model, 1, rank.rank === 0 ? undefined : ['always']);
      expect(await pulled(model)).toEqual({ a: 0.5, b: 1, c: 1.5, always: 4 });
    });
  });

  it('takes part where a backward goes through the module but reaches no parameter', async () => {
    await onRanks(2, async (rank) => {
      const { device } = rank;
      const model = wrap(passage(device), rank, options);
      const x = device.full([1], 3, { requiresGrad: true });
      for (let step = 0; step < 2; step++) {
        await device.scope(async () => {
          await (await model.call(x, rank.rank === 0)).backward();
        });
      }
      // Each of the two backwards adds the mean of 3 and 0.
      expect(await pulled(model)).toEqual({ p: 3 });
      expect(await x.grad!.item()).toBe(rank.rank === 0 ? 4 : 2);
    });
  });

  it('asks once a backward, with a byte a parameter', async () => {
    await onRanks(2, async (rank) => {
      const asked: number[] = [];
      rank.group.onTrace = ({ tag, bytes }) =>
        void (tag === 'ddp used parameters' && asked.push(bytes));
      const model = wrap(new Bag(rank.device, ABC), rank, options);
      await pull(model, 1);
      await pull(model, 1);
      expect(asked).toEqual([3, 3]);
    });
  });

  it('stays off with delayAllreduce where the options say so', async () => {
    await onRanks(1, async (rank) => {
      const given = { delayAllreduce: true, findUnusedParameters: false };
      const model = wrap(new Bag(rank.device, ABC), rank, given);
      await expect(pull(model, 1, ['a'])).rejects.toBeInstanceOf(DdpUnusedParameterError);
    });
  });

  it('is on with delayAllreduce, also for ranks that use different ones', async () => {
    await onBags(2, ABC, { delayAllreduce: true }, async ({ rank, model }) => {
      await pull(model, 1, rank.rank === 0 ? ['a'] : ['a', 'b']);
      expect(await pulled(model)).toEqual({ a: 1, b: 1, c: undefined });
    });
  });
});

describe('staticGraph', () => {
  const options = { staticGraph: true, messageSize: 1 };

  it('agrees on the used parameters once, and leaves the others out', async () => {
    await onRanks(2, async (rank) => {
      const tags: string[] = [];
      rank.group.onTrace = ({ tag }) => void tags.push(tag ?? '');
      const model = wrap(new Bag(rank.device, ABC), rank, options);
      const used = rank.rank === 0 ? ['a'] : ['a', 'b']; // It is the same in every step.
      await pull(model, 1, used);
      expect(model.buckets).toEqual([['a'], ['b']]);
      tags.length = 0;
      model.zeroGrad();
      await pull(model, 1 + rank.rank, used);
      expect(tags).toEqual(['bucket 0', 'bucket 1']);
      expect(await pulled(model)).toEqual({ a: 1.5, b: 2, c: undefined });
    });
  });

  it('is an error where a later backward differs, which names the parameters', async () => {
    const errors = await onBags(2, ABC, options, async ({ model }) => {
      await pull(model, 1, ['a', 'b']);
      return pull(model, 1, ['a', 'c']).catch((error: unknown) => error as Error);
    });
    expect(errors[0]).toBeInstanceOf(DdpUnusedParameterError);
    expect(errors[0]).toMatchObject({ parameters: ['b', 'c'] });
    expect(errors[0]!.message).toContain('Leave staticGraph out.');
  });

  it('learns anew where other parameters are trained', async () => {
    await onBags(2, ABC, options, async ({ bag, model }) => {
      await pull(model, 1, ['a', 'b']);
      bag.get('a').requiresGrad = false;
      await pull(model, 1, ['a', 'b', 'c']);
      expect(model.buckets).toEqual([['c'], ['b']]);
    });
  });

  it('delayAllreduce leaves the others out, too', async () => {
    await onRanks(2, async (rank) => {
      const model = wrap(new Bag(rank.device, ABC), rank, {
        staticGraph: true,
        delayAllreduce: true,
      });
      await pull(model, 1, ['b', 'c']);
      expect(model.buckets).toEqual([['b', 'c']]);
      model.zeroGrad();
      await pull(model, 1 + rank.rank, ['b', 'c']);
      expect(await pulled(model)).toEqual({ a: undefined, b: 3, c: 4.5 });
    });
  });
});
