// These options are refused before anything is sent, with errors that say what to do.

import {
  DdpConfigError,
  type DdpOptions,
  DdpStateError,
  DistributedDataParallel,
} from '@shardweave/ddp-buckets';
import { FullyShardedDataParallel } from '@shardweave/fsdp';
import { type Module, packParameters, Sequential } from '@shardweave/nn';
import { Device, sum, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { refusal } from '../../../tooling/test-kit/index.ts';
import { Bag, onBags, onRanks, pull, type Rank, wrap } from './support/ranks.js';

const AB = { a: 3, b: 5 };

type Given = (rank: Rank, bag: Bag) => Partial<DdpOptions> | Promise<Partial<DdpOptions>>;

async function wrapWith(given: Given, rank: Rank): Promise<void> {
  const bag = new Bag(rank.device, AB);
  wrap(bag, rank, await given(rank, bag));
}

it.each<[string, string, Given]>([
  [
    'triggers with delayAllreduce',
    'allreduceTriggerParams without delayAllreduce',
    (_, bag) => ({ delayAllreduce: true, allreduceTriggerParams: [bag.get('a')] }),
  ],
  [
    'several streams with delayAllreduce',
    'numAllreduceStreams 1 with delayAllreduce',
    () => ({ delayAllreduce: true, numAllreduceStreams: 2 }),
  ],
  [
    'communicators for one stream',
    'more than one, got 1 for 1 streams',
    async ({ group }) => ({ allreduceCommunicators: [await group.split(0)] }),
  ],
  [
    'another number of communicators',
    'got 2 for 3 streams',
    async ({ group }) => ({
      numAllreduceStreams: 3,
      allreduceCommunicators: [await group.split(0), await group.split(0)],
    }),
  ],
  [
    'one group twice',
    'one twice',
    ({ group }) => ({ numAllreduceStreams: 2, allreduceCommunicators: [group, group] }),
  ],
  [
    'communicators of other ranks',
    'of 2 ranks as processGroup has, got one of 1',
    async ({ group, rank }) => ({
      numAllreduceStreams: 2,
      allreduceCommunicators: [group, await group.split(rank)],
    }),
  ],
  [
    'messageSize with sizes in bytes',
    'either messageSize',
    () => ({ messageSize: 1, bucketCapBytes: 4 }),
  ],
  ['messageSize 0', 'messageSize', () => ({ messageSize: 0 })],
  ['firstBucketBytes -1', 'firstBucketBytes', () => ({ firstBucketBytes: -1 })],
  ['bucketCapBytes NaN', 'bucketCapBytes', () => ({ bucketCapBytes: Number.NaN })],
  ['gradientPredivideFactor 0', 'gradientPredivideFactor', () => ({ gradientPredivideFactor: 0 })],
  ['numAllreduceStreams 1.5', 'numAllreduceStreams', () => ({ numAllreduceStreams: 1.5 })],
  [
    'triggers of another module',
    "got 'c' [1]",
    ({ device }) => ({ allreduceTriggerParams: [new Bag(device, { c: 1 }).get('c')] }),
  ],
])('%s: options that cannot go together, or be, are refused', async (_, message, given) => {
  const refused = await refusal(DdpConfigError, (rank) => wrapWith(given, rank), 2);
  expect(refused).toContain(message);
});

describe('removed, dead and foreign options say what to use instead', () => {
  it.each([
    ['sharedParam', true, 'delayAllreduce: true'],
    ['shared_param', true, 'delayAllreduce: true'],
    ['gradientAverageSplitFactor', 2, 'Use gradientPredivideFactor.'],
    ['gradientAsBucketView', true, 'Use retainAllreduceBuffers: true.'],
    ['bucket_cap_mb', 25, 'Use bucketCapBytes.'],
    ['message_size', 1, 'Did you mean messageSize?'],
    ['mesageSize', 1, 'Did you mean messageSize?'],
    ['color', 1, 'Known ones: processGroup, messageSize'],
  ])('%s', async (name, value, answer) => {
    const message = await refusal(DdpConfigError, (rank) =>
      wrapWith(() => ({ [name]: value }), rank),
    );
    expect(message).toContain(`got '${name}'`);
    expect(message).toContain(answer);
  });

  it('undefined counts as left out', async () => {
    await onRanks(1, (rank) => wrapWith(() => ({ sharedParam: undefined }) as object, rank));
  });
});

describe('parameters', () => {
  it('parameters of f64 or of integers are refused with an explanation', async () => {
    await onRanks(1, async ({ device, group }) => {
      const ids = new Bag(device, { a: [2, 'u32'] });
      expect(() => wrap(ids, { group })).toThrow(/f16, bf16, f32, got u32 'a'.*f64; keep/);
      const wide = new Bag(device, AB);
      Object.defineProperty(wide.get('a').storage, 'dtype', { value: 'f64' });
      expect(() => wrap(wide, { group })).toThrow(/got f64 'a'. No device here computes in f64/);
    });
  });

  it('parameters that are wrapped or sharded already are refused, packed ones with views', async () => {
    await onRanks(1, async ({ device, group }) => {
      const wrapped = new Bag(device, AB);
      wrap(wrapped, { group });
      expect(() => wrap(wrapped, { group })).toThrow("'a', which is sharded or wrapped");
      const sharded = new Bag(device, AB);
      new FullyShardedDataParallel(sharded, { processGroup: group });
      expect(() => wrap(sharded, { group })).toThrow(DdpConfigError);
      const packed = new Bag(device, AB);
      packParameters(packed);
      expect(() => wrap(packed, { group }, { retainAllreduceBuffers: true })).toThrow(
        "plain parameters with retainAllreduceBuffers, got 'a', which is packed",
      );
      wrap(packed, { group });
      expect(() => wrap(packed, { group })).toThrow(DdpConfigError);
    });
  });

  it('parameters of another device than the module are refused', async () => {
    await onRanks(1, async ({ device, group }) => {
      const other = new Bag(new Device(device.backend), AB);
      const outer = new Sequential(device, [other as unknown as Module<[Tensor], Tensor>]);
      expect(() => wrap(outer, { group })).toThrow(/on the module's device, got '0\.a' on another/);
      other.dispose();
    });
  });

  it('are free again after dispose, and gradients are their own', async () => {
    await onRanks(1, async ({ device, group }) => {
      const bag = new Bag(device, AB);
      const model = new DistributedDataParallel(bag, { processGroup: group });
      model.dispose();
      expect(bag.get('a').gradSink).toBeUndefined();
    });
  });
});

describe('states', () => {
  it('a backward without a forward through the wrapper', async () => {
    await onRanks(1, async (rank) => {
      const bag = new Bag(rank.device, AB);
      wrap(bag, rank);
      await expect(pull(bag, 1)).rejects.toThrow(DdpStateError);
      await expect(pull(bag, 1)).rejects.toThrow(/expected a forward through the wrapper/);
    });
  });

  it('switching or synchronizing inside a backward', async () => {
    await onBags(1, AB, {}, async ({ rank, bag, model }) => {
      const messages: string[] = [];
      const note = (error: unknown) => void messages.push((error as Error).message);
      await rank.device.scope(async () => {
        const total = sum(await model.call(1));
        rank.device.beforeGradientOf(total, async () => {
          // The wrapper's own hook has not run yet, since its output's gradient comes later.
          expect(() => model.enableAllreduce()).not.toThrow();
        });
        rank.device.autograd.onGradientFinal(bag.get('a'), async () => {
          for (const call of [() => model.disableAllreduce(), () => model.enableAllreduce()]) {
            try {
              call();
            } catch (error) {
              note(error);
            }
          }
          await model.noSync(() => undefined).catch(note);
          await model.syncBuffers().catch(note);
        });
        await total.backward();
      });
      expect(messages).toHaveLength(4);
      for (const message of messages) {
        expect(message).toContain('expected no backward under way');
      }
    });
  });
});
