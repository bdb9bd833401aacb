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
import { Bag, onRanks, pull, type Rank, wrap } from './support/ranks.js';

const AB = { a: 3, b: 5 };

/** Returns the error's message, after checking its class. */
async function refusal(
  options: (rank: Rank, bag: Bag) => Partial<DdpOptions> | Promise<Partial<DdpOptions>>,
): Promise<string> {
  const [message] = await onRanks(2, async (rank) => {
    const bag = new Bag(rank.device, AB);
    const given = await options(rank, bag);
    try {
      wrap(bag, rank, given);
    } catch (error) {
      expect(error).toBeInstanceOf(DdpConfigError);
      expect(error).toMatchObject({ code: 'DDP_CONFIG' });
      return (error as Error).message;
    }
    return 'accepted';
  });
  return message!;
}

describe('conflicts', () => {
  it('triggers with delayAllreduce', async () => {
    const message = await refusal((_, bag) => ({
      delayAllreduce: true,
      allreduceTriggerParams: [bag.get('a')],
    }));
    expect(message).toContain('allreduceTriggerParams without delayAllreduce');
  });

  it('several streams with delayAllreduce', async () => {
    const message = await refusal(() => ({ delayAllreduce: true, numAllreduceStreams: 2 }));
    expect(message).toContain('numAllreduceStreams 1 with delayAllreduce');
  });

  it('communicators for one stream, another number of them, or one group twice', async () => {
    const one = await refusal(async ({ group }) => ({
      allreduceCommunicators: [await group.split(0)],
    }));
    expect(one).toContain('more than one, got 1 for 1 streams');
    const three = await refusal(async ({ group }) => ({
      numAllreduceStreams: 3,
      allreduceCommunicators: [await group.split(0), await group.split(0)],
    }));
    expect(three).toContain('got 2 for 3 streams');
    const twice = await refusal(({ group }) => ({
      numAllreduceStreams: 2,
      allreduceCommunicators: [group, group],
    }));
    expect(twice).toContain('one twice');
  });

  it('communicators of other ranks', async () => {
    const message = await refusal(async ({ group, rank }) => ({
      numAllreduceStreams: 2,
      allreduceCommunicators: [group, await group.split(rank)],
    }));
    expect(message).toContain('of 2 ranks as processGroup has, got one of 1');
  });

  it('messageSize with sizes in bytes', async () => {
    const message = await refusal(() => ({ messageSize: 1, bucketCapBytes: 4 }));
    expect(message).toContain('either messageSize');
  });

  it.each([
    ['messageSize', 0],
    ['firstBucketBytes', -1],
    ['bucketCapBytes', Number.NaN],
    ['gradientPredivideFactor', 0],
    ['numAllreduceStreams', 1.5],
  ])('%s %d', async (name, value) => {
    expect(await refusal(() => ({ [name]: value }))).toContain(name);
  });

  it('triggers of another module', async () => {
    const message = await refusal(({ device }) => ({
      allreduceTriggerParams: [new Bag(device, { c: 1 }).get('c')],
    }));
    expect(message).toContain("got 'c' [1]");
  });
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
    const message = await refusal(() => ({ [name]: value }));
    expect(message).toContain(`got '${name}'`);
    expect(message).toContain(answer);
  });

  it('undefined counts as left out', async () => {
    expect(await refusal(() => ({ sharedParam: undefined }) as Partial<DdpOptions>)).toBe(
      'accepted',
    );
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
    await onRanks(1, async (rank) => {
      const bag = new Bag(rank.device, AB);
      const model = wrap(bag, rank);
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
