// These tests check which parameters share a bucket, in which order, and when that changes.

import type { DdpOptions } from '@shardweave/ddp-buckets';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';
import {
  Bag,
  type BagSpec,
  onBags,
  onRanks,
  pull,
  pulled,
  type Rank,
  wrap,
} from './support/ranks.js';

const ABCD = { a: 100, b: 100, c: 100, d: 100 };

/** Returns the buckets before and after the first backward, on every rank. */
async function bucketsOf(
  spec: BagSpec,
  options: Partial<DdpOptions>,
  run: { readonly orders?: readonly (readonly string[])[]; readonly maxViewBytes?: number } = {},
) {
  const { orders = [Object.keys(spec), Object.keys(spec)], maxViewBytes } = run;
  const backend = createReferenceBackend(maxViewBytes === undefined ? {} : { maxViewBytes });
  const perRank = await onRanks(
    orders.length,
    async (rank) => {
      const model = wrap(new Bag(rank.device, spec), rank, options);
      await model.initialize();
      await model.device.scope(async () => {
        const total = await model.call(1, orders[rank.rank]);
        const guessed = model.buckets;
        await total.backward();
        return guessed;
      });
      return { learned: model.buckets, isLearned: model.isLearned, gradients: await pulled(model) };
    },
    { backend },
  );
  await backend.dispose();
  for (const one of perRank) {
    expect(one).toEqual(perRank[0]);
  }
  return perRank[0]!;
}

describe('messageSize', () => {
  it('is the number of elements that fills a bucket, the first one too', async () => {
    const one = await bucketsOf(ABCD, { messageSize: 1 });
    expect(one.learned).toEqual([['d'], ['c'], ['b'], ['a']]);
    const two = await bucketsOf(ABCD, { messageSize: 101 });
    expect(two.learned).toEqual([
      ['d', 'c'],
      ['b', 'a'],
    ]);
    const all = await bucketsOf(ABCD, { messageSize: 401 });
    expect(all.learned).toEqual([['d', 'c', 'b', 'a']]);
  });

  it('keeps dtypes apart and closes what is left in the order f16, bf16, f32', async () => {
    const spec = {
      a: 100,
      b: [100, 'bf16'],
      c: [100, 'f16'],
      d: 100,
      e: [100, 'bf16'],
    } as const satisfies BagSpec;
    const { learned } = await bucketsOf(spec, { messageSize: 1000 });
    expect(learned).toEqual([['c'], ['e', 'b'], ['d', 'a']]);
    const { learned: full } = await bucketsOf(spec, { messageSize: 200 });
    expect(full).toEqual([['e', 'b'], ['d', 'a'], ['c']]);
  });
});

describe('sizes in bytes', () => {
  it('firstBucketBytes closes the first bucket of a dtype, bucketCapBytes the others', async () => {
    const { learned } = await bucketsOf(ABCD, { firstBucketBytes: 400, bucketCapBytes: 800 });
    expect(learned).toEqual([['d'], ['c', 'b'], ['a']]);
  });

  it('a cap below 1 MiB holds for the first bucket, too', async () => {
    const { learned } = await bucketsOf(ABCD, { bucketCapBytes: 800 });
    expect(learned).toEqual([
      ['d', 'c'],
      ['b', 'a'],
    ]);
  });

  it('the sizes by default are 1 MiB and 40 MB', async () => {
    const MIB = 2 ** 18; // This counts f32 elements.
    const spec = { a: MIB, b: 1e7 - MIB, c: MIB, d: MIB - 1, e: 1 };
    await onBags(1, spec, {}, async ({ model }) => {
      await model.call(1, []);
      expect(model.buckets).toEqual([['e', 'd'], ['c', 'b'], ['a']]);
    });
  });
});

it('allreduceTriggerParams alone close a bucket, of their own dtype', async () => {
  const spec = { a: 100, b: 100, c: [100, 'f16'], d: 100, e: [100, 'f16'] } as const;
  const triggered = await onRanks(2, async (rank) => {
    const bag = new Bag(rank.device, spec);
    const model = wrap(bag, rank, {
      messageSize: 1,
      allreduceTriggerParams: [bag.get('b'), bag.get('e')],
    });
    await pull(model, 1);
    return model.buckets;
  });
  expect(triggered[0]).toEqual([['e'], ['d', 'b'], ['c'], ['a']]);
});

describe("a bucket past the device's binding limit splits", () => {
  it('a bucket splits between parameters, whatever its size says', async () => {
    const { learned, gradients } = await bucketsOf(
      ABCD,
      { messageSize: 1000 },
      { maxViewBytes: 1024 },
    );
    expect(learned).toEqual([
      ['d', 'c'],
      ['b', 'a'],
    ]); // Each takes 228 elements, gaps included.
    expect(gradients).toEqual({ a: 1, b: 2, c: 3, d: 4 });
    const delayed = await bucketsOf(ABCD, { delayAllreduce: true }, { maxViewBytes: 1024 });
    expect(delayed.learned).toEqual([
      ['a', 'b'],
      ['c', 'd'],
    ]);
  });

  it('a bucket splits where buffers are smaller than views, too', async () => {
    const backend = createReferenceBackend();
    const { info } = backend;
    const limits = { ...info.limits, maxBufferBytes: 1024 };
    Object.defineProperty(backend, 'info', { value: { ...info, limits } });
    await onRanks(
      2,
      async (rank) => {
        const model = wrap(new Bag(rank.device, ABCD), rank, { messageSize: 1000 });
        await pull(model, 1);
        expect(model.buckets).toEqual([
          ['d', 'c'],
          ['b', 'a'],
        ]);
      },
      { backend },
    );
    await backend.dispose();
  });

  it('counting the gaps between small parameters', async () => {
    const small = { a: 10, b: 10, c: 10 }; // Each begins at a multiple of 128.
    const { learned } = await bucketsOf(small, { messageSize: 1000 }, { maxViewBytes: 1024 });
    expect(learned).toEqual([['c', 'b'], ['a']]);
  });

  it('a bucket splits, and a larger parameter has one of its own', async () => {
    const backend = createReferenceBackend({ maxViewBytes: 1024 });
    const body = async (rank: Rank) => {
      const bag = new Bag(rank.device, { a: 10, b: 1000, c: 10 });
      const model = wrap(bag, rank, { messageSize: 1e6, findUnusedParameters: true });
      await pull(model, 1 + rank.rank, ['a', 'c']); // b is larger than this backend's largest view.
      expect(model.buckets).toEqual([['c', 'a'], ['b']]);
      expect(await pulled(model)).toEqual({ a: 1.5, b: undefined, c: 4.5 });
    };
    await onRanks(2, body, { backend });
    await backend.dispose();
  });

  it('a bucket splits at the limit of the smallest device, on all ranks alike', async () => {
    const backends = [4096, 1024].map((maxViewBytes) => createReferenceBackend({ maxViewBytes }));
    const structures = await onRanks(2, async ({ group, rank }) => {
      const { Device } = await import('@shardweave/tensor-core');
      const model = wrap(
        new Bag(new Device(backends[rank]!), ABCD),
        { group },
        { messageSize: 1e6 },
      );
      await pull(model, 1);
      return model.buckets;
    });
    for (const backend of backends) {
      await backend.dispose();
    }
    expect(structures).toEqual([
      [
        ['d', 'c'],
        ['b', 'a'],
      ],
      [
        ['d', 'c'],
        ['b', 'a'],
      ],
    ]);
  });
});

describe('the order', () => {
  const options = { messageSize: 1 };

  it("is rank 0's order of arrival, on every rank", async () => {
    const { learned, gradients } = await bucketsOf(ABCD, options, {
      orders: [
        ['c', 'a', 'd', 'b'],
        ['a', 'b', 'c', 'd'],
        ['b', 'd', 'a', 'c'],
      ],
    });
    expect(learned).toEqual([['b'], ['d'], ['a'], ['c']]);
    expect(gradients).toEqual({ a: 1, b: 2, c: 3, d: 4 });
  });

  it('is a guess in the first backward, reduced in buckets all the same, and fixed later', async () => {
    await onRanks(2, async (rank) => {
      const tags: string[] = [];
      rank.group.onTrace = ({ tag }) => void (tag?.startsWith('bucket') && tags.push(tag));
      const model = wrap(new Bag(rank.device, ABCD), rank, options);
      await model.device.scope(async () => {
        const total = await model.call(1, ['c', 'a', 'd', 'b']);
        expect(model.buckets).toEqual([['d'], ['c'], ['b'], ['a']]);
        expect(model.isLearned).toBe(false);
        await total.backward();
      });
      expect(tags).toEqual(['bucket 0', 'bucket 1', 'bucket 2', 'bucket 3']);
      const learned = [['b'], ['d'], ['a'], ['c']];
      expect(model.buckets).toEqual(learned);
      expect(model.isLearned).toBe(true);
      await pull(model, 1, ['a', 'b', 'c', 'd']); // Another order changes nothing now.
      expect(model.buckets).toEqual(learned);
    });
  });

  it('the order of reductions is that of the buckets, whatever order gradients come in', async () => {
    const sent = await onRanks(3, async (rank) => {
      const tags: string[] = [];
      rank.group.onTrace = ({ tag }) => void (tag?.startsWith('bucket') && tags.push(tag));
      const model = wrap(new Bag(rank.device, ABCD), rank, options);
      await pull(model, 1);
      tags.length = 0;
      // Rank 1's order is reversed, and in rank 2's the first bucket comes last.
      const orders = [
        ['a', 'b', 'c', 'd'],
        ['d', 'c', 'b', 'a'],
        ['d', 'a', 'b', 'c'],
      ];
      model.zeroGrad();
      await pull(model, rank.rank, orders[rank.rank]);
      expect(await pulled(model)).toEqual({ a: 1, b: 2, c: 3, d: 4 });
      return tags;
    });
    for (const tags of sent) {
      expect(tags).toEqual(['bucket 0', 'bucket 1', 'bucket 2', 'bucket 3']);
    }
  });
});

describe('when the trainable set changes', () => {
  it('buckets are made anew, learned anew, and no group is split again', async () => {
    await onRanks(2, async (rank) => {
      const bag = new Bag(rank.device, ABCD);
      const model = wrap(bag, rank, { messageSize: 1, numAllreduceStreams: 2 });
      await pull(model, 1);
      const { communicators } = model;
      expect(model.activeParams).toEqual(['a', 'b', 'c', 'd'].map((name) => bag.get(name)));

      bag.get('c').requiresGrad = false;
      model.zeroGrad();
      await pull(model, 1 + rank.rank);
      expect(model.buckets).toEqual([['d'], ['b'], ['a']]);
      expect(model.activeParams).not.toContain(bag.get('c'));
      expect(await pulled(model)).toEqual({ a: 1.5, b: 3, c: undefined, d: 6 });

      bag.get('c').requiresGrad = true;
      model.zeroGrad();
      await pull(model, 1 + rank.rank, ['c', 'a', 'b', 'd']);
      expect(model.buckets).toEqual([['d'], ['b'], ['a'], ['c']]);
      expect(await pulled(model)).toEqual({ a: 1.5, b: 3, c: 4.5, d: 6 });
      expect(model.communicators).toEqual(communicators);
      expect(model.communicators[0]).toBe(communicators[0]);
    });
  });

  it('a parameter that was frozen at construction is reduced when it is thawed', async () => {
    await onRanks(2, async (rank) => {
      const bag = new Bag(rank.device, ABCD);
      bag.get('b').requiresGrad = false;
      const model = wrap(bag, rank);
      await pull(model, 1 + rank.rank);
      bag.get('b').requiresGrad = true;
      model.zeroGrad();
      await pull(model, 1 + rank.rank);
      expect(await pulled(model)).toEqual({ a: 1.5, b: 3, c: 4.5, d: 6 });
    });
  });

  it('equally many other parameters are a change, too', async () => {
    await onRanks(2, async (rank) => {
      const bag = new Bag(rank.device, ABCD);
      bag.get('a').requiresGrad = false;
      const model = wrap(bag, rank, { messageSize: 1 });
      await pull(model, 1);
      expect(model.buckets).toEqual([['d'], ['c'], ['b']]);
      bag.get('a').requiresGrad = true;
      bag.get('d').requiresGrad = false;
      model.zeroGrad();
      await pull(model, 1 + rank.rank);
      expect(model.buckets).toEqual([['c'], ['b'], ['a']]);
      expect(await pulled(model)).toEqual({ a: 1.5, b: 3, c: 4.5, d: undefined });
    });
  });
});
