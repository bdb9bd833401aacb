// A step of groups of rows: one hash of the weights on any number of ranks, what is held and
// gathered meanwhile, calls that fail, and what is refused.

import { FsdpConfigError, FullyShardedDataParallel } from '@shardweave/fsdp';
import { Gpt2, type Module } from '@shardweave/nn';
import { describe, expect, it } from 'vitest';
import {
  afterFailure,
  freeze,
  groupCall,
  layer,
  moduleOf,
  onRanks,
  type Rank,
  refusal,
  TINY,
  trainGroupsAlone,
} from '../../../tooling/test-kit/index.ts';
import { expectRefusal, type Given, hashesBy, wrapBlocks } from './support/grouped.js';

function wrapIn(gpt2: Module, rank: Rank, given: Given = {}) {
  return wrapBlocks(gpt2, rank, { gradientGroups: 8, ...given });
}

const hashesOn = (ranks: number, given: Given) => hashesBy(wrapIn, ranks, given);

describe('a step in groups', () => {
  it('weights in f32 are those of the groups by themselves, on 1, 3, 4 and 8 ranks', async () => {
    const alone = await trainGroupsAlone();
    for (const ranks of [1, 3, 4, 8]) {
      const hashes = await hashesOn(ranks, { bucketCapMb: ranks === 3 ? 0.02 : 0 });
      expect(hashes, `${ranks} ranks`).toEqual(hashes.map(() => alone));
    }
  });

  it('weights in bf16 have one hash on 1, 3, 4 and 8 ranks', async () => {
    const given = { mixedPrecision: true, computeDType: 'bf16' } as const;
    const [first] = await hashesOn(1, given);
    for (const ranks of [3, 4, 8]) {
      const hashes = await hashesOn(ranks, { ...given, reshardAfterForward: ranks !== 4 });
      expect(hashes, `${ranks} ranks`).toEqual(hashes.map(() => first));
    }
  });
});

/** Runs the calls of a step; returns what each gathers, and the gradients that it leaves held. */
function callsOf(ranks: number, given: Given, isFrozen: (name: string) => boolean = () => false) {
  return onRanks(ranks, async (rank) => {
    const { device, group } = rank;
    const model = wrapIn(freeze(new Gpt2(device, TINY, { seed: 3 }), isFrozen), rank, given);
    await model.initialize();
    const instances = model.instances();
    const calls: { gathers: number; gradientBytes: number }[] = [];
    for (const groupOfCall of model.groupCalls) {
      const before = group.stats().allGathers;
      await groupCall(model, device, { step: 0, group: groupOfCall });
      const gathers = group.stats().allGathers - before;
      calls.push({ gathers, gradientBytes: device.memory().live.gradient });
    }
    const shardBytes = instances
      .flatMap(({ units }) => units)
      .reduce((bytes, { flat }) => bytes + flat.storage.byteLength, 0);
    model.zeroGrad();
    const units = instances.map((instance) => instance.units.length);
    return { groups: model.groupCalls, calls, shardBytes, units };
  });
}

describe('a step', () => {
  it('deals groups out in turn, gathers in every call, and holds no gradient between them', async () => {
    const ranks = await callsOf(3, {});
    expect(ranks.map(({ groups }) => groups)).toEqual([
      [0, 3, 6],
      [1, 4, 7],
      [2, 5, undefined],
    ]);
    for (const { calls, shardBytes, units } of ranks) {
      expect(calls.map(({ gradientBytes }) => gradientBytes)).toEqual([0, 0, shardBytes]);
      // The root stays from forward to backward, but each block is gathered for both.
      for (const { gathers } of calls.slice(1)) {
        expect(gathers).toBe(2 * (units.length - 1));
      }
    }
  });

  it.each([
    ['a model that is all trained', () => false],
    ['a frozen base beside what is trained', (name: string) => /attn|mlp/.test(name)],
  ])('gathers %s once where it stays, and else twice in each call', async (_, isFrozen) => {
    for (const reshardAfterForward of [false, true]) {
      for (const { calls, units } of await callsOf(2, { reshardAfterForward }, isFrozen)) {
        const [root, ...blocks] = units as [number, ...number[]];
        const inBlocks = blocks.reduce((all, count) => all + count);
        const again = reshardAfterForward ? 2 * inBlocks : 0;
        const first = root + Math.max(inBlocks, again);
        expect(calls.map(({ gathers }) => gathers)).toEqual([first, again, again, again]);
      }
    }
  });
});

it('a call that fails after others ends the step, which zeroGrad begins anew', async () => {
  for (const { refused, hashes } of await afterFailure((model, { group: processGroup }) => {
    return new FullyShardedDataParallel(model, { processGroup, gradientGroups: 4 });
  })) {
    expect(refused).toMatch(/expected the gradients that earlier backwards left .* Call zeroGrad/);
    expect(hashes[0]).toBe(hashes[1]);
  }
});

it('refuses a step of which only some calls use a parameter', () =>
  expectRefusal({}, (group) => group > 5));

describe('refused are', () => {
  const config = (given: Given) =>
    refusal(FsdpConfigError, (rank) => wrapIn(new Gpt2(rank.device, TINY), rank, given), 2);

  it.each<[string, Given, string]>([
    ['no number', { gradientGroups: 1.5 }, 'gradientGroups'],
    ['unused parameters', { findUnusedParameters: true }, 'findUnusedParameters'],
    [
      'sums in 16 bits',
      { mixedPrecision: true, fp32ReduceScatter: false },
      'fp32ReduceScatter false',
    ],
  ])('%s', async (_, given, message) => {
    expect(await config(given)).toContain(message);
  });

  it('replicas', async () => {
    const message = await refusal(
      FsdpConfigError,
      async (rank) => {
        const replicateGroup = await rank.group.split(0);
        wrapIn(new Gpt2(rank.device, TINY), rank, { replicateGroup });
      },
      2,
    );
    expect(message).toContain('replicateGroup');
  });

  it('noSync, and instances that deal groups out in another way', async () => {
    const noSync = await refusal(
      FsdpConfigError,
      (rank) => wrapIn(new Gpt2(rank.device, TINY), rank).noSync(() => {}),
      2,
    );
    expect(noSync).toContain('expected no gradientGroups, got 8');
    const nested = (own: Given, root: Given) =>
      refusal(
        FsdpConfigError,
        async ({ device, group: processGroup }) => {
          const inner = { processGroup, name: 'inner', ...own };
          const first = new FullyShardedDataParallel(layer(device), inner);
          const net = moduleOf(device, { first, last: layer(device) }, () => {});
          await new FullyShardedDataParallel(net, { processGroup, ...root }).initialize();
        },
        2,
      );
    expect(await nested({}, { gradientGroups: 8 })).toContain(
      "expected gradientGroups 8 of instance 'inner', as its root has, got none",
    );
    expect(await nested({ gradientGroups: 8 }, {})).toContain('as its root has, got 8');
  });

  it('experts of fewer ranks', async () => {
    const message = await refusal(
      FsdpConfigError,
      async ({ device, group, rank }) => {
        const alone = await group.split(rank);
        const options = { gradientGroups: 8, name: 'expert' };
        const expert = new FullyShardedDataParallel(layer(device), {
          ...options,
          processGroup: alone,
        });
        const net = moduleOf(device, { expert, last: layer(device) }, () => {});
        await new FullyShardedDataParallel(net, {
          processGroup: group,
          gradientGroups: 8,
        }).initialize();
      },
      2,
    );
    expect(message).toContain("process groups of their own, got 8 and 'expert'");
  });
});
