// If ranks wrap their models differently, all of them throw an error that names the difference,
// before any data moves.

import type { CollectiveTrace } from '@shardweave/collectives';
import { FsdpConfigError, type FsdpOptions, FullyShardedDataParallel } from '@shardweave/fsdp';
import { Linear, type Module } from '@shardweave/nn';
import { expect, it } from 'vitest';
import {
  layer,
  onRanks,
  type Rank,
  rejectionOf,
  rowsOf,
  Stack,
  trainOnce,
} from '../../../tooling/test-kit/index.ts';

/** Options that end a test which would otherwise wait for the time-out. */
const IN_TIME = { timeout: 8000 };

interface Part {
  readonly module?: Module;
  readonly options?: Partial<FsdpOptions>;
}

function made({ device, group }: Rank, { module, options }: Part, root: Partial<FsdpOptions> = {}) {
  const around = { processGroup: group, ...root };
  const inner = new FullyShardedDataParallel(module ?? layer(device), {
    ...around,
    name: 'inner',
    ...options,
  });
  const stack = new Stack(device, [inner, layer(device)]);
  return new FullyShardedDataParallel(stack, { ...around, name: 'root' });
}

async function refusalOf(model: FullyShardedDataParallel): Promise<string> {
  const error = await rejectionOf(model.initialize());
  expect(error).toBeInstanceOf(FsdpConfigError);
  return (error as Error).message;
}

/**
 * The options of all ranks, what rank 1 has in addition, and what the error then shows for rank 0
 * and rank 1.
 */
const DIFFERENCES: readonly (readonly [
  all: Partial<FsdpOptions>,
  one: Partial<FsdpOptions>,
  first: string,
  other: string,
])[] = [
  [{}, { gradientPredivideFactor: 4 }, 'gradientPredivideFactor: 2', 'gradientPredivideFactor: 4'],
  [{}, { reshardAfterForward: false }, 'reshardAfterForward: true', 'reshardAfterForward: false'],
  [
    {},
    { disableReshardOnRoot: false },
    'disableReshardOnRoot: true',
    'disableReshardOnRoot: false',
  ],
  [{}, { mixedPrecision: true }, 'mixedPrecision: false', 'mixedPrecision: true'],
  [{ mixedPrecision: true }, { computeDType: 'f16' }, 'computeDType: bf16', 'computeDType: f16'],
  [
    { mixedPrecision: true },
    { fp32ReduceScatter: true },
    'fp32ReduceScatter: false',
    'fp32ReduceScatter: true',
  ],
  [{}, { bufferDType: 'f16' }, 'bufferDType: f32', 'bufferDType: f16'],
  [{}, { forceInputToFp32: true }, 'forceInputToFp32: false', 'forceInputToFp32: true'],
  [{}, { bucketCapMb: 0 }, 'bucketCapMb: 25', 'bucketCapMb: 0'],
  [{}, { gatherCapBytes: 0 }, 'gatherCapBytes: 67108864', 'gatherCapBytes: 0'],
  [{}, { syncModuleStates: false }, 'syncModuleStates: true', 'syncModuleStates: false'],
  [{}, { findUnusedParameters: true }, 'findUnusedParameters: false', 'findUnusedParameters: true'],
  [
    {},
    { noBroadcastOptimState: true },
    'noBroadcastOptimState: not given',
    'noBroadcastOptimState: true',
  ],
  [
    {},
    { processGroupReduceScatter: 'default' },
    'processGroupReduceScatter: reduceScatter',
    'processGroupReduceScatter: default',
  ],
  [{}, { moveParamsToCpu: true }, 'what rests in a store: nothing', 'what rests in a store: all'],
  [{}, { flattenParameters: false }, 'flattenParameters: true', 'flattenParameters: false'],
];

it.each(DIFFERENCES)('options %j, on rank 1 alone %j', IN_TIME, (all, one, first, other) =>
  onRanks(2, async (rank) => {
    const model = made(rank, { options: { ...all, ...(rank.rank === 1 ? one : {}) } });
    const message = await refusalOf(model);
    expect(message).toContain(
      `got ${first} on rank 0 and ${other} on rank 1, of instance 'inner'.`,
    );
    expect(rank.device.memory().live).toMatchObject({ gathered: 0, staging: 0 });
    await rank.group.barrier(); // The group goes on.
  }),
);

it('the last of three ranks', IN_TIME, () =>
  onRanks(3, async (rank) => {
    const options = rank.rank === 2 ? { reshardAfterForward: false } : {};
    const message = await refusalOf(made(rank, { options }));
    expect(message).toContain('true on rank 0 and reshardAfterForward: false on rank 2, of');
  }),
);

it('the root of one rank', IN_TIME, () =>
  onRanks(2, async (rank) => {
    const root = { gradientPredivideFactor: 1 + rank.rank };
    const message = await refusalOf(made(rank, { options: { gradientPredivideFactor: 1 } }, root));
    expect(message).toContain('on rank 0 and gradientPredivideFactor: 2 on rank 1');
    expect(message).toContain("of instance 'root'");
  }),
);

it('another shape on one rank', IN_TIME, () =>
  onRanks(2, async (rank) => {
    const wide = new Linear(rank.device, { inFeatures: 6, outFeatures: 7 });
    const message = await refusalOf(made(rank, rank.rank === 1 ? { module: wide } : {}));
    expect(message).toContain(
      'inner of 36 + 6 in f32 on rank 0 and flat parameters: inner of 42 + 7 in f32',
    );
  }),
);

it('an instance that only one rank has', IN_TIME, () =>
  onRanks(2, async (rank) => {
    const { device, group } = rank;
    const module = layer(device);
    const second = { processGroup: group, name: 'second' };
    const part = rank.rank === 1 ? new FullyShardedDataParallel(module, second) : module;
    const stack = new Stack(device, [part]);
    const model = new FullyShardedDataParallel(stack, { processGroup: group, name: 'root' });
    expect(await refusalOf(model)).toMatch(/on rank 0 and .* on rank 1, of instance 'root'/);
  }),
);

it.each([0, 1, 2, 3])(
  'rank %i of two replicas of two: all four learn of it',
  IN_TIME,
  async (at) => {
    const messages = await onRanks(4, async (rank) => {
      const processGroup = await rank.group.split(rank.rank >> 1);
      const replicateGroup = await rank.group.split(rank.rank & 1);
      const options = rank.rank === at ? { gradientPredivideFactor: 4 } : {};
      return refusalOf(made(rank, { options }, { processGroup, replicateGroup }));
    });
    for (const message of messages) {
      expect(message).toContain('gradientPredivideFactor: 4 on rank');
      expect(message).toContain('gradientPredivideFactor: 2 on rank');
    }
  },
);

it('a replica whose ranks agree only among themselves', IN_TIME, () =>
  onRanks(4, async (rank) => {
    const processGroup = await rank.group.split(rank.rank >> 1);
    const replicateGroup = await rank.group.split(rank.rank & 1);
    const options = { gradientPredivideFactor: rank.rank < 2 ? 2 : 4 };
    const message = await refusalOf(made(rank, { options }, { processGroup, replicateGroup }));
    expect(message).toContain('on replica 0 and gradientPredivideFactor: 4 on replica 1, of');
  }),
);

it('experts of one group: the ranks of the other groups learn of it too', IN_TIME, () =>
  onRanks(4, async (rank) => {
    const processGroup = await rank.group.split(rank.rank >> 1);
    const options = { processGroup, reshardAfterForward: rank.rank !== 3 };
    const message = await refusalOf(made(rank, { options }));
    expect(message).toContain('true on rank 0 and reshardAfterForward: false on rank 1, of');
  }),
);

it('experts with different options, each over a group of its own', () =>
  onRanks(2, async (rank) => {
    const processGroup = await rank.group.split(rank.rank);
    const options = { processGroup, name: `expert ${rank.rank}`, bucketCapMb: rank.rank };
    await trainOnce(made(rank, { options }), rowsOf(rank));
  }));

it('options that may differ by rank', () =>
  onRanks(2, async (rank) => {
    const isFirst = rank.rank === 0;
    const options = {
      verbose: isFirst,
      stateDictOnRank0Only: isFirst,
      stateDictDevice: isFirst ? 'host' : 'device',
      allowResetParameters: isFirst,
    } as const;
    await trainOnce(made(rank, { options }), rowsOf(rank));
  }));

it('costs a gather of sixteen bytes a rank, once: of options, and of the numeric class', () =>
  onRanks(2, async (rank) => {
    const seen: CollectiveTrace[] = [];
    const model = made(rank, {});
    rank.group.onTrace = (trace) => seen.push(trace);
    await model.initialize();
    const options = seen.filter(({ tag }) => tag === 'options');
    expect(options).toMatchObject([{ name: 'allGather', bytes: 16 }]);
    seen.length = 0;
    await trainOnce(model, rowsOf(rank));
    expect(seen.filter(({ tag }) => tag === 'options')).toEqual([]);
  }));
