// Gradients are averaged on request.

import { DdpConfigError, DdpStructureError } from '@shardweave/ddp-buckets';
import { Reducer } from '@shardweave/ddp-buckets/apex';
import { Sgd } from '@shardweave/nn';
import type { Device, Tensor } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';
import { errorsOnRanks } from '../../../tooling/test-kit/index.ts';
import { Bag, onRanks, pull, pulled } from './support/ranks.js';

const SPEC = { a: 3, b: [5, 'f16'], c: 200, d: [1, 'bf16'] } as const;

const filled = (device: Device, size: number, value: number) =>
  device.full([size], value, { tag: 'gradient' });

describe('a Reducer of a module', () => {
  it('reduce() replaces gradients by their means, one all-reduce a dtype, and only then', async () => {
    await onRanks(2, async (rank) => {
      const bag = new Bag(rank.device, SPEC);
      const reducer = new Reducer(bag, { processGroup: rank.group });
      await pull(bag, 1 + rank.rank);
      await pull(bag, 1 + rank.rank);
      expect((await pulled(bag)).a).toBe(2 + 2 * rank.rank);
      await reducer.initialize();
      const before = rank.group.stats().allReduces;
      await reducer.reduce();
      expect(await pulled(bag)).toEqual({ a: 3, b: 6, c: 9, d: 12 });
      // One is for who has which, and three for f32, f16 and bf16.
      expect(rank.group.stats().allReduces - before).toBe(1 + 3);
      expect(rank.device.memory().live.staging).toBe(0);
    });
  });

  it("initialize gives all ranks rank 0's parameters, and the first reduce calls it", async () => {
    await onRanks(2, async (rank) => {
      const bag = new Bag(rank.device, SPEC);
      await pull(bag, rank.rank);
      await new Sgd([bag.get('a')], { lr: 1 }).step();
      await new Reducer(bag, { processGroup: rank.group }).reduce();
      expect([...(await bag.get('a').toArray())]).toEqual([0, 0, 0]);
    });
  });

  it('divides after the sum, in the dtype that is sent', async () => {
    await onRanks(2, async (rank) => {
      const bag = new Bag(rank.device, { a: [3, 'f16'] });
      const reducer = new Reducer(bag, { processGroup: rank.group });
      await pull(bag, 60000);
      await reducer.reduce();
      expect((await pulled(bag)).a).toBe(Number.POSITIVE_INFINITY);
    });
  });

  it('a gradient that only some ranks have is averaged with zeros, on all of them', async () => {
    await onRanks(3, async (rank) => {
      const bag = new Bag(rank.device, { a: 3, b: 5, c: 2 });
      const reducer = new Reducer(bag, { processGroup: rank.group });
      await pull(bag, 3, rank.rank === 1 ? ['a', 'b'] : ['a']);
      await reducer.reduce();
      expect(await pulled(bag)).toEqual({ a: 3, b: 2, c: undefined });
    });
  });

  it('a module of another shape on a rank is refused on all', async () => {
    const errors = await errorsOnRanks(2, async (rank) => {
      const bag = new Bag(rank.device, { a: 3 + rank.rank });
      const reducer = new Reducer(bag, { processGroup: rank.group });
      await reducer.reduce();
    });
    for (const error of errors) {
      expect(error).toBeInstanceOf(DdpStructureError);
    }
  });
});

describe('a Reducer of gradients', () => {
  it('gradients may come in nested iterables of any kind', async () => {
    await onRanks(2, async ({ device, group, rank }) => {
      const [a, b, c] = [3, 5, 7].map((size) => filled(device, size, size * rank)) as [
        Tensor,
        Tensor,
        Tensor,
      ];
      const reducer = new Reducer(
        [
          a,
          new Set([[b]]),
          (function* () {
            yield c;
          })(),
        ],
        {
          processGroup: group,
        },
      );
      await reducer.reduce();
      expect([...(await a.toArray())]).toEqual([1.5, 1.5, 1.5]);
      expect((await b.toArray())[4]).toBe(2.5);
      expect((await c.toArray())[6]).toBe(3.5);
    });
  });

  it('gradients of other dtypes, or of parameters that are sharded, are refused', async () => {
    await onRanks(1, async ({ device, group }) => {
      const options = { processGroup: group };
      const ids = device.tensor(Int32Array.of(1));
      expect(() => new Reducer(ids, options)).toThrow(DdpConfigError);
      const bag = new Bag(device, { a: 3 });
      bag.get('a').piece = { flat: bag.get('a'), start: 0, length: 3 };
      expect(() => new Reducer(bag, options)).toThrow("'a', which is sharded or packed");
    });
  });
});

it('splits what the device cannot bind at once', async () => {
  const backend = createReferenceBackend({ maxViewBytes: 1024 });
  await onRanks(
    2,
    async ({ device, group, rank }) => {
      const gradients = Array.from({ length: 4 }, () => filled(device, 100, rank));
      const reducer = new Reducer(gradients, { processGroup: group });
      await reducer.initialize();
      const before = group.stats().allReduces;
      await reducer.reduce();
      expect(group.stats().allReduces - before).toBe(2);
      for (const gradient of gradients) {
        expect((await gradient.toArray())[99]).toBe(0.5);
      }
    },
    { backend },
  );
  await backend.dispose();
});
