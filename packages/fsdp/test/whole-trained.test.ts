// shardTrained: false: a frozen base is sharded, and what is trained lies whole on each rank. Bits
// are those of other wrappers, and the bytes those of the two parts.

import { openSave } from '@shardweave/checkpoint';
import { FsdpConfigError, FullyShardedDataParallel, shardLayout } from '@shardweave/fsdp';
import {
  consolidateShardWeights,
  localMetadataDict,
  localStateDict,
  summonFullParams,
} from '@shardweave/fsdp/fairscale';
import {
  AdamW,
  Gpt2,
  gradNorm,
  hashModel,
  lazyStateDict,
  loadCheckpoint,
  loadStateDict,
  Module,
  saveCheckpoint,
  stateDict,
} from '@shardweave/nn';
import { describe, expect, it } from 'vitest';
import {
  afterFailure,
  expectAsAlone,
  freeze,
  groupCall,
  layer,
  onRanks,
  type Rank,
  refusal,
  Stack,
  TINY,
  textOf,
  trainOnce,
} from '../../../tooling/test-kit/index.ts';
import { AXES, plainOutcome, shardedOutcomes, titleOf, toleranceOf } from './support/cells.js';
import { expectRefusal, type Given, hashesBy, wrapBlocks } from './support/grouped.js';
import { pairwiseRows } from './support/pairwise.js';
import { adam, everything, net, place, saved } from './support/saved-models.js';
import { wrapIn as wrapsIn } from './support/sharding.js';

const isBase = (name: string) => /attn|mlp/.test(name);

/** Wraps a GPT-2 whose blocks are frozen but for their norms. */
function wrapIn(gpt2: Module, rank: Rank, given: Given = {}) {
  return wrapBlocks(freeze(gpt2, isBase), rank, { shardTrained: false, ...given });
}

const hashesOn = (ranks: number, given: Given) => hashesBy(wrapIn, ranks, given);

const CELLS = pairwiseRows(
  {
    ...AXES,
    ranks: ['2', '3'],
    checkpointing: ['inside'],
    residence: ['device'],
    forwards: [1],
    dropout: [0.3],
    shape: ['uneven'],
    nesting: ['blocks', 'deep', 'twice'],
    flattenParameters: [true, false],
  } as const,
  2,
).map((cell) => ({ ...cell, isWhole: true }));

it.each(CELLS.map((cell) => [titleOf(cell), cell] as const))(
  'trains as one process does: %s',
  async (_, cell) => {
    expectAsAlone(await shardedOutcomes(cell), await plainOutcome(cell), toleranceOf(cell));
  },
);

describe('a step in groups', () => {
  const groups = { gradientGroups: 8 };

  it('weights in f32 are those of one rank, on 2, 3 and 8 ranks', async () => {
    const [first] = await hashesOn(1, { ...groups, shardTrained: true });
    for (const ranks of [2, 3, 8]) {
      const hashes = await hashesOn(ranks, { ...groups, bucketCapMb: ranks === 3 ? 0.02 : 0 });
      expect(hashes, `${ranks} ranks`).toEqual(hashes.map(() => first));
    }
  });

  it('weights in bf16 have one hash on 1, 3 and 4 ranks', async () => {
    const given = { ...groups, mixedPrecision: true, computeDType: 'bf16' } as const;
    const [first] = await hashesOn(1, given);
    for (const ranks of [3, 4]) {
      const hashes = await hashesOn(ranks, { ...given, reshardAfterForward: ranks !== 4 });
      expect(hashes, `${ranks} ranks`).toEqual(hashes.map(() => first));
    }
  });

  it('deals groups out in runs, and adds up over ranks in the last call alone', () =>
    onRanks(3, async (rank) => {
      const { device, group } = rank;
      const model = wrapIn(new Gpt2(device, TINY, { seed: 3 }), rank, {
        ...groups,
        processGroupReduceScatter: 'default',
      });
      await model.initialize();
      const runs = [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, undefined],
      ];
      expect(model.groupCalls).toEqual(runs[rank.rank]);
      const sums: number[] = [];
      for (const groupOfCall of model.groupCalls) {
        const before = group.stats().allReduces;
        await groupCall(model, device, { step: 0, group: groupOfCall });
        sums.push(group.stats().allReduces - before);
      }
      expect(sums).toEqual([0, 0, model.instances().length]);
      expect(group.stats().reduceScatters).toBe(0);
    }));

  it('a call that fails after others ends the step, which zeroGrad begins anew', async () => {
    for (const { refused, hashes } of await afterFailure((model, { group: processGroup }) => {
      const options = { processGroup, gradientGroups: 4, shardTrained: false };
      return new FullyShardedDataParallel(model, options);
    })) {
      expect(refused).toMatch(
        /expected the gradients that earlier backwards left .* Call zeroGrad/,
      );
      expect(hashes[0]).toBe(hashes[1]);
    }
  });

  it.each([
    ['the last calls', (group: number) => group % 4 === 3],
    ['the first calls', (group: number) => group % 4 === 0],
  ])('refuses one of which only %s use a parameter', (_, isUsing) =>
    expectRefusal({ shardTrained: false }, isUsing),
  );
});

/** Three layers of which the first is frozen, with one trained and one frozen flat. */
function stack({ device, group }: Pick<Rank, 'device' | 'group'>, given: Given = {}) {
  const layers = [freeze(layer(device)), layer(device), layer(device)];
  return wrapsIn({ group }, { shardTrained: false, ...given })(new Stack(device, layers));
}

/** What is trained of a model, without its wrappers. */
class Trained extends Module {
  constructor(model: Module) {
    super(model.device);
    for (const [name, tensor] of model.namedParameters()) {
      if (tensor.requiresGrad) {
        this.sharedParameter(name, tensor);
      }
    }
  }

  override forward(): never {
    throw new Error('it has no layers');
  }
}

it('holds the trained parameters, gradients and optimizer state whole, and the rest in shards', () =>
  onRanks(3, async (rank) => {
    const { device, group } = rank;
    const first = layer(device);
    const sizes = first.parameters().map(({ size }) => size);
    first.dispose();
    const model = stack(rank);
    const optimizer = new AdamW(model.parameters(), { lr: 0.1 });
    const held = () => {
      const { parameter, optimizer, gradient, gathered, staging } = device.memory().live;
      return { parameter, optimizer, gradient, gathered, staging };
    };
    await trainOnce(model, { first: rank.rank, count: 1 });
    const whole = shardLayout([...sizes, ...sizes], 1).shardLength;
    const parameter = 4 * (whole + shardLayout(sizes, 3).shardLength);
    const rest = { parameter, optimizer: 0, gradient: 0, gathered: 0, staging: 0 };
    expect(held()).toEqual({ ...rest, gradient: 4 * whole });
    const before = group.stats();
    await gradNorm(model);
    expect(group.stats(), 'each rank has all gradients').toEqual(before);
    await optimizer.step();
    optimizer.zeroGrad();
    expect(held()).toEqual({ ...rest, optimizer: 8 * whole });
    optimizer.dispose();
    model.dispose();
    expect(device.memory().live.total).toBe(0);
  }));

it('gradients have the norm that one process has', async () => {
  const normOn = (ranks: number) =>
    onRanks(ranks, async (rank) => {
      const model = stack(rank);
      await trainOnce(model, { first: 0, count: 2 });
      return gradNorm(model);
    });
  const [alone] = await normOn(1);
  expect(await normOn(2)).toEqual([alone, alone]);
});

describe('a save', () => {
  it('has what is trained once, and loads on other ranks, sharded or not', async () => {
    const { files, whole } = await saved(3, { shardTrained: false });
    const { tensors } = await openSave(files);
    for (const { pieces } of tensors.values()) {
      expect(pieces).toHaveLength(1);
    }
    for (const given of [{ shardTrained: true }, { shardTrained: false }]) {
      const [loaded] = await onRanks(2, async (rank) => {
        const model = net(rank, given);
        const optimizer = adam(model);
        await loadCheckpoint(model, files, { optimizer });
        return everything(model, optimizer);
      });
      expect(loaded).toEqual(whole);
    }
  });

  it('is made, hashed and loaded by a rank alone, through a module of what is trained', () =>
    onRanks(2, async (rank) => {
      const model = stack(rank, { mixedPrecision: true, computeDType: 'bf16' });
      const optimizer = new AdamW(model.parameters().filter(({ requiresGrad }) => requiresGrad));
      await trainOnce(model, { first: rank.rank, count: 1 });
      await optimizer.step();
      const options = { optimizer, onlyTrained: true };
      const together = await hashModel(model, options);
      if (rank.rank === 1) {
        const alone = new Trained(model);
        expect(await hashModel(alone, options)).toBe(together);
        const store = place();
        await saveCheckpoint(alone, store, options);
        const zeros = new Map(
          [...(await stateDict(alone))].map(([name, entry]) => [
            name,
            { ...entry, data: new Uint8Array(entry.data.byteLength) },
          ]),
        );
        await loadStateDict(alone, zeros);
        expect(await hashModel(alone, options)).not.toBe(together);
        await loadCheckpoint(alone, store, options);
      }
      expect(await hashModel(model, options)).toBe(together);
    }));

  it('reads as state dicts do on one rank, lazy, local and written in part too', async () => {
    const textsOn = (ranks: number) =>
      onRanks(ranks, async (rank) => {
        const model = stack(rank);
        await summonFullParams(model, () => {
          for (const parameter of model.parameters()) {
            parameter.storage.write(new Uint8Array(4).fill(1), 0);
          }
        });
        const lazy = await lazyStateDict(model, { stateDictOnRank0Only: true });
        const read = await Promise.all(
          [...lazy].map(
            async ([name, entry]) => [name, { ...entry, data: await entry.read() }] as const,
          ),
        );
        const local = [await localStateDict(model), localMetadataDict(model)] as const;
        return { all: textOf(await stateDict(model)), read: textOf(new Map(read)), local };
      });
    const [alone] = await textsOn(1);
    const found = await textsOn(3);
    const [first, ...others] = found;
    expect(first!.all).toEqual(alone!.all);
    expect(first!.read).toEqual(alone!.all);
    for (const { all, read } of others) {
      expect([all, read]).toEqual([alone!.all, {}]);
    }
    const locals = found.map(({ local }) => local);
    const [shards, metadata] = [locals.map(([shard]) => shard), locals.map(([, data]) => data)];
    expect(textOf(consolidateShardWeights(shards, metadata))).toEqual(alone!.all);
  });
});

describe('refused are', () => {
  const config = (wrap: (rank: Rank) => unknown) => refusal(FsdpConfigError, wrap, 2);

  it.each<[Given, string]>([
    [{ moveParamsToCpu: true }, 'moveParamsToCpu'],
    [{ moveGradsToCpu: true }, 'moveGradsToCpu'],
  ])('%j', async (given, message) => {
    expect(await config((rank) => stack(rank, given))).toContain(message);
  });

  it('replicas', async () => {
    const message = await config(async (rank) =>
      stack(rank, { replicateGroup: await rank.group.split(0) }),
    );
    expect(message).toContain('replicateGroup: all ranks of processGroup are replicas');
  });

  it('an instance that shards what the others have whole', async () => {
    const message = await config(async ({ device, group }) => {
      const wrap = wrapsIn({ group }, { shardTrained: false });
      const inner = wrap(layer(device), { shardTrained: true, name: 'inner' });
      await wrap(new Stack(device, [inner, layer(device)])).initialize();
    });
    expect(message).toContain("expected shardTrained false of instance 'inner', as its root has");
  });

  it('a flat parameter of both kinds, and one that was frozen and is trained', async () => {
    const mixed = await config(({ device, group }) => {
      const first = freeze(layer(device), (name) => name === 'bias');
      const flattenParameters = [{ name: 'both', params: first.parameters() }];
      wrapsIn({ group }, { shardTrained: false, flattenParameters })(first);
    });
    expect(mixed).toContain("flat parameter 'fsdp.both' with shardTrained: false, got 'weight'");
    const thawed = await config(async (rank) => {
      const model = stack(rank);
      for (const parameter of model.parameters()) {
        parameter.requiresGrad = true;
      }
      await trainOnce(model, { first: 0, count: 1 });
    });
    expect(thawed).toContain("got requiresGrad of '0.weight', which is sharded");
  });
});
