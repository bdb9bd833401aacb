// These ranks don't do the same: they have other options, another wrapper, are a batch ahead, or
// have a layer that the others lack. All of them throw an error that says what differs.

import type { ProcessGroup } from '@shardweave/collectives';
import {
  allReduceHook,
  type DdpOptions,
  DdpStructureError,
  powerSgdHook,
} from '@shardweave/ddp-buckets';
import { naiveAllReduce, Reducer } from '@shardweave/ddp-buckets/apex';
import { add } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { errorsOnRanks } from '../../../tooling/test-kit/index.ts';
import { Bag, onRanks, pull, pulled, type Rank, wrap } from './support/ranks.js';

const AB = { a: 3, b: 3 };

describe('options that differ by rank', () => {
  type Given = (rank: Rank, bag: Bag) => Partial<DdpOptions> | Promise<Partial<DdpOptions>>;
  const cases: [option: string, values: readonly [string, string], zero: Given, one: Given][] = [
    ['gradientPredivideFactor', ['1', '2'], () => ({}), () => ({ gradientPredivideFactor: 2 })],
    ['gradientAverage', ['true', 'false'], () => ({}), () => ({ gradientAverage: false })],
    ['delayAllreduce', ['false', 'true'], () => ({}), () => ({ delayAllreduce: true })],
    ['messageSize', ['5', '7'], () => ({ messageSize: 5 }), () => ({ messageSize: 7 })],
    ['messageSize', ['unset', '7'], () => ({}), () => ({ messageSize: 7 })],
    ['firstBucketBytes', ['1048576', '64'], () => ({}), () => ({ firstBucketBytes: 64 })],
    ['bucketCapBytes', ['40000000', '2097152'], () => ({}), () => ({ bucketCapBytes: 2 ** 21 })],
    [
      'allreduceTriggerParams',
      ['none', 'b'],
      () => ({}),
      (_, bag) => ({ allreduceTriggerParams: [bag.get('b')] }),
    ],
    [
      'retainAllreduceBuffers',
      ['false', 'true'],
      () => ({}),
      () => ({ retainAllreduceBuffers: true }),
    ],
    ['allreduceAlwaysFp32', ['true', 'false'], () => ({ allreduceAlwaysFp32: true }), () => ({})],
    ['numAllreduceStreams', ['1', '2'], () => ({}), () => ({ numAllreduceStreams: 2 })],
    [
      'allreduceCommunicators',
      ['world', 'world'],
      (rank) => streams(rank, false),
      (rank) => streams(rank, true),
    ],
    ['findUnusedParameters', ['false', 'true'], () => ({}), () => ({ findUnusedParameters: true })],
    ['staticGraph', ['false', 'true'], () => ({}), () => ({ staticGraph: true })],
    ['broadcastBuffers', ['false', 'true'], () => ({}), () => ({ broadcastBuffers: true })],
    [
      'communicationHook',
      ['none', 'mine'],
      () => ({}),
      () => ({ communicationHook: { ...allReduceHook, name: 'mine' } }),
    ],
    [
      'communicationHook',
      ['powerSgd .*seed 0', 'powerSgd .*seed 1'],
      () => ({ communicationHook: powerSgdHook() }),
      () => ({ communicationHook: powerSgdHook({ seed: 1 }) }),
    ],
    ['name', ['', 'critic'], () => ({}), () => ({ name: 'critic' })],
  ];

  async function streams({ group }: Rank, isReversed: boolean) {
    const groups = [await group.split(0), await group.split(0)];
    if (isReversed) {
      groups.reverse();
    }
    return { numAllreduceStreams: 2, allreduceCommunicators: groups };
  }

  it.each(cases)('are an error before anything else: %s %o', async (option, values, ...given) => {
    const errors = await onRanks(2, async (rank) => {
      const bag = new Bag(rank.device, AB);
      const options = await given[rank.rank as 0 | 1](rank, bag);
      const { broadcasts } = rank.group.stats();
      const error = await pull(wrap(bag, rank, options), 1).catch((failure: unknown) => failure);
      expect(rank.group.stats().broadcasts).toBe(broadcasts);
      return error as Error;
    });
    for (const error of errors) {
      expect(error).toBeInstanceOf(DdpStructureError);
      expect(error.message).toMatch(
        new RegExp(
          `'${option}: ${values[0]}.*' on rank 0 and '${option}: ${values[1]}.*' on rank 1. Wrap with the same options`,
        ),
      );
    }
  });

  it('prof may differ, for each rank may set its own', async () => {
    await onRanks(2, async (rank) => {
      const model = wrap(new Bag(rank.device, AB), rank, { prof: rank.rank === 0 });
      await pull(model, 1 + rank.rank);
      expect(await pulled(model)).toEqual({ a: 1.5, b: 3 });
    });
  });

  it('options of naiveAllReduce are found too', async () => {
    const errors = await errorsOnRanks(2, async (rank) => {
      const bag = new Bag(rank.device, { a: 3 });
      await pull(bag, 1);
      await naiveAllReduce(bag.parameters(), {
        processGroup: rank.group,
        gradientPredivideFactor: 1 + rank.rank,
      });
    });
    for (const error of errors) {
      expect(error).toMatchObject({ code: 'MISMATCH' });
    }
    expect((errors[0] as Error).message).toContain("'naive 0, divided by 2 and 1'");
  });
});

describe('a collective of the same size', () => {
  /** Returns the calls of rank 0 and rank 1 as each rank's error names them. */
  async function mismatch(body: (rank: Rank) => Promise<unknown>): Promise<string> {
    const errors = await onRanks(2, (rank) => body(rank).catch((error: unknown) => error));
    for (const error of errors) {
      expect(error).toMatchObject({ code: 'MISMATCH' });
    }
    return (errors[0] as Error).message;
  }

  it("is not another wrapper's", async () => {
    const message = await mismatch(async (rank) => {
      const models = [0, 1].map(() => wrap(new Bag(rank.device, AB), rank));
      for (const model of models) {
        await pull(model, 1);
      }
      await pull(models[rank.rank]!, 1);
    });
    expect(message).toMatch(/rank 0 called allReduce .*'ddp 0 backward 2 bucket 0'/);
    expect(message).toMatch(/rank 1 called allReduce .*'ddp 1 backward 2 bucket 0'/);
  });

  it("is not the caller's own", async () => {
    const message = await mismatch(async (rank) => {
      const model = wrap(new Bag(rank.device, { a: 4 }), rank, { name: 'net' });
      await pull(model, 1);
      if (rank.rank === 0) {
        return pull(model, 1);
      }
      const sums = new Uint8Array(16);
      return rank.group.allReduce(sums, sums, { dtype: 'f32', op: 'sum', wire: 'exact' });
    });
    expect(message).toContain("'ddp 'net' backward 2 bucket 0'");
  });

  it('is not that of other parameters, buffers, used parameters, orders or a join', async () => {
    const found: [identity: string | undefined, tag: string | undefined][] = [];
    await onRanks(2, async (rank) => {
      if (rank.rank === 0) {
        noteIdentities(rank.group, found);
      }
      const options = { findUnusedParameters: true, broadcastBuffers: true };
      const model = wrap(new Bag(rank.device, AB), rank, options);
      await model.join(() => pull(model, 1), { optimizers: [] });
      await pull(model, 1);
      await model.syncBuffers();
      const reducer = new Reducer(model, { processGroup: rank.group });
      await reducer.reduce();
    });
    expect(found.length).toBeGreaterThan(15);
    for (const [identity, tag] of found) {
      expect(identity, tag).toBeDefined();
    }
  });

  it('a collective of a rank that left a batch out after its forward is one of another step', async () => {
    const message = await mismatch(async (rank) => {
      const model = wrap(new Bag(rank.device, AB), rank);
      for (let batch = 0; batch < 5; batch++) {
        await rank.device.scope(async () => {
          const loss = await model.call(1);
          const isLeftOut = rank.rank === 1 && batch === 1; // Its loss may be NaN, for example.
          if (!isLeftOut) {
            await loss.backward();
          }
        });
      }
    });
    expect(message).toContain("'ddp 0 backward 3 bucket 0'");
    expect(message).toContain("'ddp 0 backward 3 (1 forwards left without a backward) bucket 0'");
  });

  it('stays the same for ranks that record unequal numbers of forwards for one backward', async () => {
    await onRanks(2, async (rank) => {
      const { device } = rank;
      const model = wrap(new Bag(device, AB), rank);
      for (let step = 0; step < 3; step++) {
        model.zeroGrad();
        await device.scope(async () => {
          // In evaluation, without gradients and in noSync, ranks may do different things.
          if (rank.rank === 0) {
            await model.eval().call(7);
            await model.train().noSync(() => model.call(7));
            await device.noGrad(() => model.call(7));
          }
          let total = await model.call(1 + rank.rank);
          if (rank.rank === 1) {
            total = add(total, await model.call(1));
          }
          await total.backward();
        });
        expect(await pulled(model)).toEqual({ a: 2, b: 4 });
      }
    });
  });
});

/** Notes the identity of each collective. */
function noteIdentities(
  group: ProcessGroup,
  found: [identity: string | undefined, tag: string | undefined][],
): void {
  for (const name of ['allGather', 'allReduce', 'broadcast'] as const) {
    const call = group[name].bind(group) as (...args: unknown[]) => Promise<void>;
    group[name] = (...args: unknown[]) => {
      const { identity, tag } = args.at(-1) as { identity?: string; tag?: string };
      found.push([identity, tag]);
      return call(...args);
    };
  }
}
