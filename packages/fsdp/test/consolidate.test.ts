// Whole parameters are put together from saved shards, without a process group.

import { type FsdpOptions, FullyShardedDataParallel } from '@shardweave/fsdp';
import {
  consolidateShardWeights,
  localMetadataDict,
  localStateDict,
  type ShardMetadata,
} from '@shardweave/fsdp/fairscale';
import {
  BatchNorm1d,
  Gpt2,
  Linear,
  loadStateDict,
  type Module,
  Sgd,
  type StateDict,
  StateDictError,
  stateDict,
} from '@shardweave/nn';
import { Device } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';
import {
  DIM,
  forwardBackward,
  onRanks,
  type Rank,
  Stack,
  TINY,
  trainOnce,
} from '../../../tooling/test-kit/index.ts';
import { shardedGpt2, wrapIn } from './support/sharding.js';

type Wrap = (module: Module) => Module;

/**
 * This model has layers whose sizes shards cut, a batch norm with buffers, and a bias that is used
 * twice.
 */
class Net extends Stack {
  constructor(device: Device, options: { readonly width: number; readonly wrap?: Wrap }) {
    const { width, wrap = (module) => module } = options;
    super(device, [
      new Linear(device, { inFeatures: DIM, outFeatures: width }),
      wrap(new Linear(device, { inFeatures: width, outFeatures: width })),
      wrap(new BatchNorm1d(device, { numFeatures: width })),
    ]);
    const [first] = this.children().values();
    this.sharedParameter('alias', first!.ownParameters().get('bias')!);
  }
}

interface Saved {
  readonly weights: StateDict[];
  readonly metadata: ShardMetadata[];
  readonly shared: ReadonlyMap<string, unknown>;
}

function wrapped({ device, group }: Rank, width: number, options: Partial<FsdpOptions> = {}) {
  const wrap = wrapIn({ group }, options);
  return wrap(new Net(device, { width, wrap }));
}

/**
 * Trains one step over `worldSize` ranks; returns every rank's shards and metadata, which went
 * through text.
 */
async function saved(
  worldSize: number,
  width: number,
  options: Partial<FsdpOptions> = {},
): Promise<Saved> {
  const perRank = await onRanks(worldSize, async (rank) => {
    const model = wrapped(rank, width, options);
    const optimizer = new Sgd(model.parameters(), { lr: 0.1 });
    await trainOnce(model, { first: 4 * rank.rank, count: 4 });
    await optimizer.step();
    return {
      weights: await localStateDict(model),
      metadata: JSON.parse(JSON.stringify(localMetadataDict(model))) as ShardMetadata,
      whole: await stateDict(model),
    };
  });
  return {
    weights: perRank.map(({ weights }) => weights),
    metadata: perRank.map(({ metadata }) => metadata),
    shared: perRank[0]!.whole,
  };
}

describe.each([1, 2, 3, 4, 8])('the shards of %i ranks', (worldSize) => {
  // At width 16 everything divides evenly. Width 37 cuts weights in odd places and leaves whole
  // ranks with padding alone.
  it.each([
    [16, true],
    [37, true],
    [37, false],
  ])('make the state dict, %i wide, flattened %s', async (width, flattenParameters) => {
    const { weights, metadata, shared } = await saved(worldSize, width, { flattenParameters });
    const whole = consolidateShardWeights(weights, metadata);
    expect([...whole.keys()]).toEqual([...shared.keys()]);
    expect(whole).toEqual(shared);
    // The result has the names and shapes of the bare module, which can load it.
    const bare = new Net(new Device(createReferenceBackend()), { width });
    await loadStateDict(bare, whole);
    expect(await stateDict(bare)).toEqual(whole);
    // Ranks given in another order are sorted.
    const reversed = consolidateShardWeights([...weights].reverse(), [...metadata].reverse());
    expect(reversed).toEqual(whole);
  });
});

it('the consolidated model gives exactly the loss of the sharded one', async () => {
  const rows = { batch: 2, first: 0, count: 2 };
  const perRank = await onRanks(2, async (rank) => {
    const { model } = shardedGpt2(rank);
    const optimizer = new Sgd(model.parameters(), { lr: 0.1 });
    await forwardBackward(rank.device, model, 0, { batch: 2, first: rank.rank, count: 1 });
    await optimizer.step();
    optimizer.zeroGrad();
    return {
      loss: await forwardBackward(rank.device, model, 1, rows),
      weights: await localStateDict(model),
      metadata: localMetadataDict(model),
    };
  });
  const whole = consolidateShardWeights(
    perRank.map(({ weights }) => weights),
    perRank.map(({ metadata }) => metadata),
  );
  const backend = await createCpuBackend({ threads: 1 }); // The ranks have such backends too.
  const device = new Device(backend, { seed: 7 });
  const bare = new Gpt2(device, TINY, { seed: 99 });
  await loadStateDict(bare, whole);
  expect(await forwardBackward(device, bare, 1, rows)).toBe(perRank[0]!.loss);
  await backend.dispose();
});

it("metadata tell names, shapes, each rank's padding, and shared names", async () => {
  const { metadata } = await saved(3, 37);
  const [first] = metadata as [ShardMetadata];
  expect(first.flats.map(({ key, path, names }) => [key, path, names])).toEqual([
    ['flat_param_0', '', ['alias', '0.weight']], // The root's own names come first.
    ['flat_param_1', '1', ['1.weight', '1.bias']],
    ['flat_param_2', '2', ['2.weight', '2.bias']],
  ]);
  expect(first.flats[0]!.shapes).toEqual([[37], [37, DIM]]);
  // Parameters begin at multiples of 128. Those of 37 and 222 elements take 384, which is 128 on
  // each rank. Those of 1369 and 37 take 1536, which is 512 on each. Those of 37 and 37 take 256,
  // so the third rank has none.
  expect(metadata.map(({ flats }) => flats.map(({ padding }) => padding))).toEqual([
    [0, 0, 0],
    [0, 0, 0],
    [0, 0, 128],
  ]);
  expect(first.sharedParameters).toEqual([{ name: 'alias', alias: '0.bias' }]);
  expect(first.buffers).toEqual(['2.running_mean', '2.running_var', '2.num_batches_tracked']);
});

it('consolidation without buffers and without strict takes what is there', async () => {
  const { weights, metadata, shared } = await saved(2, 16);
  const bare = consolidateShardWeights(weights, metadata, { withModuleBuffers: false });
  expect([...bare.keys()]).toEqual([...shared.keys()].slice(0, 6));
  weights[1]!.delete('flat_param_1');
  weights[0]!.delete('2.running_var');
  const partial = consolidateShardWeights(weights, metadata, { strict: false });
  const left = [...shared.keys()].filter((name) => !/^1\.|running_var/.test(name));
  expect([...partial.keys()]).toEqual(left);
});

it('takes values that ranks hold for themselves from the first', async () => {
  const perRank = await onRanks(2, async (rank) => {
    const alone = await rank.group.split(rank.rank);
    const device = new Device(rank.device.backend, { seed: rank.rank });
    const shared = new Linear(device, { inFeatures: DIM, outFeatures: DIM });
    const own = new Linear(device, { inFeatures: DIM, outFeatures: DIM });
    const expert = new FullyShardedDataParallel(own, { processGroup: alone });
    const model = wrapIn(rank)(new Stack(device, [shared, expert]));
    return { weights: await localStateDict(model), metadata: localMetadataDict(model) };
  });
  const [first, second] = perRank.map(({ weights }) => weights);
  expect(first!.get('flat_param_1')).not.toEqual(second!.get('flat_param_1'));
  const metadata = perRank.map((rank) => rank.metadata);
  expect(metadata[0]!.flats.map(({ isLocal }) => isLocal)).toEqual([false, true]);
  const whole = consolidateShardWeights([first!, second!], metadata);
  const bytes = first!.get('flat_param_1')!.data;
  expect(whole.get('1.weight')!.data).toEqual(bytes.slice(0, 4 * DIM * DIM));
});

it('takes a shard by its place in a group of every other rank', async () => {
  const perRank = await onRanks(4, async (rank) => {
    const { device } = rank;
    const group = await rank.group.split(rank.rank % 2);
    const linear = () => new Linear(device, { inFeatures: DIM, outFeatures: DIM });
    const inner = wrapIn({ group })(linear());
    const model = wrapIn(rank)(new Stack(device, [linear(), inner]));
    return {
      weights: await localStateDict(model),
      metadata: localMetadataDict(model),
      inner: await stateDict(inner),
    };
  });
  const whole = consolidateShardWeights(
    perRank.map(({ weights }) => weights),
    perRank.map(({ metadata }) => metadata),
  );
  for (const [name, entry] of perRank[0]!.inner) {
    expect(whole.get(`1.${name}`)).toEqual(entry);
  }
});

describe('refuses', () => {
  it.each([
    ['no shards', () => ({ weights: [], metadata: [] })],
    [
      'a rank missing',
      ({ weights, metadata }: Saved) => ({
        weights: weights.slice(1),
        metadata: metadata.slice(1),
      }),
    ],
    [
      'a rank twice',
      ({ weights, metadata }: Saved) => ({
        weights: [weights[0]!, weights[0]!],
        metadata: [metadata[0]!, metadata[0]!],
      }),
    ],
    [
      'fewer metadata than shards',
      ({ weights, metadata }: Saved) => ({
        weights,
        metadata: metadata.slice(1),
      }),
    ],
    [
      'a shard that is too short',
      ({ weights, metadata }: Saved) => {
        const entry = weights[1]!.get('flat_param_0')!;
        weights[1]!.set('flat_param_0', { ...entry, data: entry.data.subarray(4) });
        return { weights, metadata };
      },
    ],
    [
      'another padding than the shard has',
      ({ weights, metadata }: Saved) => {
        const [first, second] = metadata as [ShardMetadata, ShardMetadata];
        const flats = second.flats.map((flat) => ({ ...flat, padding: flat.padding + 1 }));
        return { weights, metadata: [first, { ...second, flats }] };
      },
    ],
    [
      'metadata of another model',
      ({ weights, metadata }: Saved) => {
        const [first, second] = metadata as [ShardMetadata, ShardMetadata];
        const flats = second.flats.map((flat) => ({ ...flat, names: ['other'] }));
        return { weights, metadata: [first, { ...second, flats }] };
      },
    ],
    [
      'a missing flat parameter',
      ({ weights, metadata }: Saved) => {
        weights[0]!.delete('flat_param_2');
        return { weights, metadata };
      },
    ],
    [
      'a missing buffer',
      ({ weights, metadata }: Saved) => {
        weights[0]!.delete('2.running_mean');
        return { weights, metadata };
      },
    ],
  ])('%s', async (_, spoil) => {
    const { weights, metadata } = spoil(await saved(2, 16));
    expect(() => consolidateShardWeights(weights, metadata)).toThrow(StateDictError);
  });
});
