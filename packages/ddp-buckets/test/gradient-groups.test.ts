// A step of groups of rows: one hash of the weights on any number of ranks, calls that fail, and
// what is refused.

import {
  compressionHook,
  DdpConfigError,
  type DdpOptions,
  DistributedDataParallel,
} from '@shardweave/ddp-buckets';
import { type Gpt2, packParameters } from '@shardweave/nn';
import { describe, expect, it } from 'vitest';
import {
  afterFailure,
  groupCall,
  onRanks,
  type Rank,
  refusal,
  trainGroupsAlone,
  trainInGroups,
} from '../../../tooling/test-kit/index.ts';
import { SMALL_BUCKETS, tinyGpt2 } from './support/ranks.js';

const OPTIONS = { ...SMALL_BUCKETS, gradientAverage: false, gradientGroups: 8 };

function wrapIn(gpt2: Gpt2, { group: processGroup }: Rank, options: Partial<DdpOptions> = {}) {
  return new DistributedDataParallel(gpt2, { ...OPTIONS, ...options, processGroup });
}

const hashesOn = async (ranks: number, dtype: 'f32' | 'bf16') =>
  trainInGroups({
    ranks,
    wrap: (gpt2, rank) => {
      if (dtype !== 'f32') {
        packParameters(gpt2, { computeDType: dtype });
      }
      return wrapIn(gpt2, rank);
    },
  });

describe('a step in groups', () => {
  it('weights in f32 are those of the groups by themselves, on 1, 3, 4 and 8 ranks', async () => {
    const alone = await trainGroupsAlone();
    for (const ranks of [1, 3, 4, 8]) {
      const hashes = await hashesOn(ranks, 'f32');
      expect(hashes, `${ranks} ranks`).toEqual(hashes.map(() => alone));
    }
  });

  it.each([[[1, 5, 2]], [[0, 8]], [[8, 0]]])(
    'weights are the same where %s of them are dealt',
    async (groupCounts) => {
      const alone = await trainGroupsAlone();
      const wrap = (gpt2: Gpt2, rank: Rank) => wrapIn(gpt2, rank, { groupCounts });
      const hashes = await trainInGroups({ ranks: groupCounts.length, wrap });
      expect(hashes).toEqual(hashes.map(() => alone));
    },
  );

  it('weights in bf16 have one hash on 1, 3, 4 and 8 ranks', async () => {
    const [first] = await hashesOn(1, 'bf16');
    for (const ranks of [3, 4, 8]) {
      const hashes = await hashesOn(ranks, 'bf16');
      expect(hashes, `${ranks} ranks`).toEqual(hashes.map(() => first));
    }
  });
});

it('deals groups out in runs, and sends only with the last of them', async () => {
  const told = await onRanks(3, async (rank) => {
    const model = wrapIn(tinyGpt2(rank.device), rank);
    const sums: number[] = [];
    for (const group of model.groupCalls) {
      await groupCall(model, rank.device, { step: 0, group });
      sums.push(rank.group.stats().allReduces);
    }
    model.zeroGrad();
    return { calls: model.groupCalls, sums, buckets: model.buckets.length };
  });
  expect(told.map(({ calls }) => calls)).toEqual([
    [0, 1, 2],
    [3, 4, 5],
    [6, 7, undefined],
  ]);
  for (const { sums, buckets } of told) {
    const [first, second, third] = sums as [number, number, number];
    expect(second).toBe(first); // what the first one sends are words of the wrapper
    expect(third - second).toBeGreaterThanOrEqual(2);
    expect(buckets).toBeGreaterThanOrEqual(2);
  }
});

it('divides by the number of groups, where gradients are averaged', async () => {
  const [averaged, divided] = await Promise.all(
    [true, false].map((gradientAverage) =>
      onRanks(2, async (rank) => {
        const model = wrapIn(tinyGpt2(rank.device), rank, { gradientAverage });
        for (const group of model.groupCalls) {
          await groupCall(model, rank.device, {
            step: 0,
            group,
            lossScale: gradientAverage ? 8 : 1,
          });
        }
        const gradients = await Promise.all(model.parameters().map(({ grad }) => grad!.toBytes()));
        return Buffer.concat(gradients).toString('hex');
      }),
    ),
  );
  expect(averaged).toEqual(divided); // by 8, a power of two
});

it('a call that fails after others ends the step, which zeroGrad begins anew', async () => {
  for (const { refused, hashes } of await afterFailure((model, { group: processGroup }) => {
    return new DistributedDataParallel(model, { processGroup, gradientGroups: 4 });
  })) {
    expect(refused).toMatch(/expected the 4 groups of a step .* Call zeroGrad and begin/);
    expect(hashes[0]).toBe(hashes[1]);
  }
});

describe('refused are', () => {
  const given = (options: Partial<DdpOptions>) =>
    refusal(DdpConfigError, async (rank) => void wrapIn(tinyGpt2(rank.device), rank, options), 2);

  it.each<[string, Partial<DdpOptions>, string]>([
    ['no number', { gradientGroups: 0 }, 'a whole number of at least 1, got 0'],
    ['counts of other ranks', { groupCounts: [8] }, 'groupCounts of 2 ranks that add up to grad'],
    ['counts of other groups', { groupCounts: [4, 3] }, 'gradientGroups, 8, got [4, 3]'],
    ['hooks', { communicationHook: compressionHook({ wire: 'f16' }) }, 'communicationHook'],
    ['unused parameters', { findUnusedParameters: true }, 'findUnusedParameters'],
    ['unused parameters that stay so', { staticGraph: true }, 'freeze those that none uses'],
    ['one bucket at the end', { delayAllreduce: true }, 'findUnusedParameters'],
    ['sums in 16 bits', { allreduceAlwaysFp32: false }, 'allreduceAlwaysFp32 false'],
  ])('%s', async (_, options, message) => {
    expect(await given(options)).toContain(message);
  });

  it('noSync, join and disableAllreduce', async () => {
    for (const act of [
      (model: DistributedDataParallel) => model.noSync(() => {}),
      (model: DistributedDataParallel) => model.join(async () => {}, { optimizers: [] }),
      async (model: DistributedDataParallel) => model.disableAllreduce(),
    ]) {
      const message = await refusal(
        DdpConfigError,
        (rank) => act(wrapIn(tinyGpt2(rank.device), rank)),
        2,
      );
      expect(message).toContain('expected no gradientGroups, got 8');
    }
  });
});
