// Several process groups take the buckets in turn.

import type { ProcessGroup } from '@shardweave/collectives';
import { describe, expect, it } from 'vitest';
import { Bag, onBags, onRanks, pull, pulled, wrap } from './support/ranks.js';

const ABCDE = { a: 100, b: 100, c: 100, d: 100, e: 100 };
const ANSWER = { a: 1.5, b: 3, c: 4.5, d: 6, e: 7.5 };

/** Returns how many all-reduces each group has done. */
const counts = (groups: readonly ProcessGroup[]) => groups.map((g) => g.stats().allReduces);

describe('numAllreduceStreams', () => {
  it('sends bucket i by group i mod n', async () => {
    await onRanks(2, async (rank) => {
      const options = { messageSize: 1, numAllreduceStreams: 3 };
      const model = wrap(new Bag(rank.device, ABCDE), rank, options);
      await pull(model, 1 + rank.rank);
      expect(await pulled(model)).toEqual(ANSWER);
      expect(model.communicators).toHaveLength(3);
      expect(counts(model.communicators)).toEqual([2, 2, 1]);
      expect(rank.group.stats().allReduces).toBe(0); // The reducer uses only its own groups.
    });
  });

  it('the only one is processGroup itself', async () => {
    await onBags(2, ABCDE, {}, async ({ rank, model }) => {
      await pull(model, 1);
      expect(model.communicators).toEqual([rank.group]);
    });
  });

  it('lets a later bucket overtake an earlier one on another group', async () => {
    await onRanks(2, async (rank) => {
      const ended: string[] = [];
      let release: () => void = () => undefined;
      const held = new Promise<void>((resolve) => {
        release = resolve;
      });
      const groups = [await rank.group.split(0), await rank.group.split(0)];
      for (const group of groups) {
        const allReduce = group.allReduce.bind(group);
        group.allReduce = async (input, output, options) => {
          await allReduce(input, output, options);
          if (options.tag === 'bucket 0') {
            await held;
          }
          ended.push(options.tag!);
          if (options.tag === 'bucket 3') {
            release();
          }
        };
      }
      const model = wrap(new Bag(rank.device, ABCDE), rank, {
        messageSize: 1,
        numAllreduceStreams: 2,
        allreduceCommunicators: groups,
      });
      await pull(model, 1 + rank.rank);
      expect(ended.indexOf('bucket 3')).toBeLessThan(ended.indexOf('bucket 0'));
      expect(await pulled(model)).toEqual(ANSWER);
    });
  });
});

it('allreduceCommunicators are used, in their order', async () => {
  await onRanks(2, async (rank) => {
    const groups = [await rank.group.split(0), await rank.group.split(0)];
    const model = wrap(new Bag(rank.device, ABCDE), rank, {
      messageSize: 1,
      numAllreduceStreams: 2,
      allreduceCommunicators: groups,
    });
    for (let step = 0; step < 2; step++) {
      model.zeroGrad();
      await pull(model, 1 + rank.rank);
      expect(await pulled(model)).toEqual(ANSWER);
    }
    expect(model.communicators).toEqual(groups);
    expect(counts(groups)).toEqual([6, 4]);
  });
});

it('one rank sends nothing, with any options', async () => {
  await onRanks(1, async (rank) => {
    const options = { messageSize: 1, numAllreduceStreams: 3, findUnusedParameters: true };
    const model = wrap(new Bag(rank.device, ABCDE), rank, options);
    await pull(model, 1, ['a', 'b']);
    expect(await pulled(model)).toEqual({ a: 1, b: 2, c: undefined, d: undefined, e: undefined });
    expect(rank.group.stats()).toMatchObject({ allReduces: 0, allGathers: 0, broadcasts: 0 });
  });
});
