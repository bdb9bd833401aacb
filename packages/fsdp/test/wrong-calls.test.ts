// What programs in plain JavaScript get wrong where they wrap, and in calls of instances: each is
// told what was expected, what came and what to write.

import {
  autoWrap,
  defaultAutoWrapPolicy,
  FsdpConfigError,
  type FsdpOptions,
  FsdpStateError,
  FullyShardedDataParallel,
  fullyShard,
  setGradientDivideFactors,
  type WrapPolicy,
} from '@shardweave/fsdp';
import {
  autoWrapBn,
  consolidateShardWeights,
  gatherFullOptimStateDict,
  loadLocalStateDict,
  localOptimStateDict,
  summonFullParams,
} from '@shardweave/fsdp/fairscale';
import {
  AdamW,
  BatchNorm1d,
  clipGradNorm,
  Linear,
  NnConfigError,
  ParameterInit,
  packParameters,
  stateDict,
} from '@shardweave/nn';
import { type Device, mean, square } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  DIM,
  layer,
  loose,
  onRanks,
  type Rank,
  refusal,
  Stack,
} from '../../../tooling/test-kit/index.ts';

const seeded = (device: Device, seed: number) =>
  new Linear(device, {
    inFeatures: DIM,
    outFeatures: DIM,
    init: new ParameterInit(device, { seed }),
  });
const stack = ({ device }: Rank) => new Stack(device, [layer(device), layer(device)]);
const wrapped = (rank: Rank) =>
  new FullyShardedDataParallel(layer(rank.device), { processGroup: rank.group });

describe('options', () => {
  const options = loose({ onlyTrainded: true });
  const steps = (model: FullyShardedDataParallel) => new AdamW(model.parameters());
  it.each<[string, (rank: Rank) => unknown]>([
    ['fullyShard', (rank) => fullyShard(stack(rank), { processGroup: rank.group, ...options })],
    ['defaultAutoWrapPolicy', () => defaultAutoWrapPolicy(options)],
    ['setGradientDivideFactors', (rank) => setGradientDivideFactors(wrapped(rank), options)],
    ['autoWrapBn', (rank) => autoWrapBn(stack(rank), options)],
    ['consolidateShardWeights', () => consolidateShardWeights([], [], options)],
    ['summonFullParams', (rank) => summonFullParams(wrapped(rank), () => {}, options)],
    ['loadLocalStateDict', (rank) => loadLocalStateDict(wrapped(rank), new Map(), options)],
    [
      'gatherFullOptimStateDict',
      (rank) => {
        const model = wrapped(rank);
        return gatherFullOptimStateDict(model, steps(model), options);
      },
    ],
    [
      'localOptimStateDict',
      (rank) => {
        const model = wrapped(rank);
        return localOptimStateDict(model, steps(model), options);
      },
    ],
  ])('an unknown option of %s is refused by its name', async (name, call) => {
    expect(await refusal(FsdpConfigError, call)).toContain(
      `${name}: expected known options, got 'onlyTrainded'.`,
    );
  });

  it.each([
    ['mpPolicy', 'Use mixedPrecision, with computeDType and fp32ReduceScatter.'],
    ['mp_policy', 'Use mixedPrecision, with computeDType and fp32ReduceScatter.'],
    ['mesh', 'Use processGroup, and replicateGroup for hybrid sharding.'],
    ['group', 'Use processGroup.'],
    ['offload_policy', 'Use moveParamsToCpu.'],
  ])('%s, which users of PyTorch know, has our name for an answer', async (name, hint) => {
    const call = ({ device, group }: Rank) =>
      fullyShard(layer(device), loose({ processGroup: group, [name]: {} }));
    expect(await refusal(FsdpConfigError, call)).toContain(`'${name}'. ${hint}`);
  });
});

describe('a value of another kind', () => {
  it.each<[string, (rank: Rank) => unknown, string]>([
    [
      'no options',
      (rank) => fullyShard(stack(rank), loose(undefined)),
      'fullyShard: expected an object of options (processGroup, ',
    ],
    [
      'names of classes',
      (rank) => fullyShard(stack(rank), { processGroup: rank.group, wrap: loose(['Linear']) }),
      'expected wrap as an array of module classes or a policy, got ["Linear"]. Write wrap: [Block].',
    ],
    [
      'a handle of packed parameters to shard',
      (rank) => fullyShard(loose(packParameters(stack(rank))), { processGroup: rank.group }),
      'fullyShard: expected a module, got a plain object. packParameters changes the model in place',
    ],
    [
      'a handle of packed parameters to wrap',
      ({ device, group }) =>
        new FullyShardedDataParallel(loose(packParameters(layer(device))), { processGroup: group }),
      'fsdp: expected a module, got a plain object. packParameters changes the model in place',
    ],
    [
      'options in place of a policy',
      (rank) => autoWrap(stack(rank), loose({ minNumParams: 1 }), (module) => module),
      'autoWrap: expected policy to be a function, got a plain object.',
    ],
    [
      'options in place of a wrap',
      (rank) => autoWrap(stack(rank), () => true, loose({ processGroup: rank.group })),
      'autoWrap: expected wrap to be a function, got a plain object.',
    ],
    [
      'a module in place of its batch norms',
      ({ group }) => autoWrapBn(loose([]), { processGroup: group }),
      'autoWrapBn: expected a module, got [].',
    ],
  ])('%s', async (_, call, message) => {
    expect(await refusal(FsdpConfigError, call)).toContain(message);
  });
});

it('a policy that chooses nothing inside is told the classes that it saw, and nothing is wrapped', () =>
  onRanks(1, async ({ device, group }) => {
    const model = new Stack(device, [layer(device), new BatchNorm1d(device, { numFeatures: DIM })]);
    const policy: WrapPolicy = ({ question, unwrappedParams }) =>
      question === 'recurse' || unwrappedParams > 1e9;
    const wrap = () => fullyShard(model, { processGroup: group, wrap: policy });
    expect(wrap).toThrow(FsdpConfigError);
    expect(wrap).toThrow(
      'fullyShard: expected a policy that chooses modules inside Stack, got none of Linear, BatchNorm1d.',
    );
    expect(model.parameters().every(({ gradSink }) => gradSink === undefined)).toBe(true);
  }));

it('a backward of the module whose wrapper was dropped says which one to call', async () => {
  const message = await refusal(FsdpStateError, async ({ device, group }) => {
    const model = new Stack(device, [layer(device)]);
    fullyShard(model, { processGroup: group });
    await device.scope(async () => {
      await mean(square(await model.call(device.full([2, DIM], 1)))).backward();
    });
  });
  expect(message).toContain('expected a forward of the wrapper, which fullyShard returns, before');
});

it('a second call beside the first is told when it may come, and the first goes on', () =>
  onRanks(2, async ({ device, group }) => {
    const model = new FullyShardedDataParallel(layer(device), { processGroup: group });
    const x = device.full([2, DIM], 1);
    const [first, second] = await Promise.allSettled([model.call(x), model.call(x)]);
    expect(first.status).toBe('fulfilled');
    expect(String((second as PromiseRejectedResult).reason)).toContain(
      "instance 'fsdp' in state forward. Call it after that forward, not beside or inside it.",
    );
  }));

describe('instances of one name over two groups', () => {
  it('are named with their paths where one call is about both', () =>
    onRanks(2, async (rank) => {
      const { device, group } = rank;
      const other = await group.split(0);
      const model = new Stack(device, [layer(device), layer(device)]);
      for (const [name, processGroup] of [
        ['0', group],
        ['1', other],
      ] as const) {
        const options: FsdpOptions = { processGroup };
        const inner = model.children().get(name)!;
        model.replaceChild(name, new FullyShardedDataParallel(inner, options));
      }
      const refused = expect(stateDict(model)).rejects;
      await refused.toThrow(NnConfigError);
      await refused.toThrow("one process group, got 'fsdp' at '0' and 'fsdp' at '1' over two.");
    }));

  it('train below one root as one group does, and have no common norm', async () => {
    const perRank = await onRanks(2, async ({ device, group, rank }) => {
      const seen: (readonly string[])[] = [];
      for (const processGroup of [group, await group.split(0)]) {
        const model = new Stack(
          device,
          [0, 1].map((seed) => seeded(device, seed)),
        );
        const inner = model.children().get('1')!;
        model.replaceChild('1', new FullyShardedDataParallel(inner, { processGroup }));
        const root = new FullyShardedDataParallel(model, { processGroup: group });
        const optimizer = new AdamW(root.parameters(), { lr: 0.1 });
        for (let step = 0; step < 2; step++) {
          await device.scope(async () => {
            const x = device.full([2, DIM], rank + step);
            await mean(square(await root.call(x))).backward();
            await optimizer.step();
          });
        }
        if (processGroup !== group) {
          await expect(clipGradNorm(root, 1)).rejects.toThrow(
            "clipGradNorm: expected all instances in one process group, got 'fsdp' and 'fsdp' at '1' in two.",
          );
        }
        const state = await stateDict(root);
        seen.push([...state.values()].map(({ data }) => Buffer.from(data).toString('hex')));
      }
      return seen;
    });
    for (const [one, two] of perRank) {
      expect(two).toEqual(one);
    }
  });
});
