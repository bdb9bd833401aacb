// Shards, gradients and optimizer state rest on the host or on disk. Training has the same bits as
// on the device, whatever else a step does with them.

import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { FsdpOptions } from '@shardweave/fsdp';
import { AdamW, clipGradNorm, type Optimizer, Sgd, stateDict } from '@shardweave/nn';
import { openDiskStore } from '@shardweave/shard-store/node';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { afterAll, describe, expect, it } from 'vitest';
import { bitsOf } from './support/offload-training.js';
import {
  forwardBackward,
  onRanks,
  optimizerGroups,
  type Rank,
  shardedGpt2,
} from './support/ranks.js';

const directories: string[] = [];

afterAll(async () => {
  for (const path of directories) {
    await rm(path, { recursive: true, force: true });
  }
});

async function newDirectory(): Promise<string> {
  const path = await mkdtemp(join(tmpdir(), 'shardweave-fsdp-'));
  directories.push(path);
  return path;
}

interface Training {
  readonly fsdp?: Partial<FsdpOptions>;
  readonly tier: 'device' | 'host' | 'disk' | 'host gradients';
  readonly optimizer?: 'adamw' | 'sgd';
  readonly clip?: number;
  /** The number of backwards in a step. Each is reduced, or with noSync only the last one. */
  readonly numBackwards?: number;
  readonly isSyncing?: boolean;
}

const STEPS = 2; // The second step reads what the first one has left.

/** Returns the losses, norms and all weights of a short training, as bits. */
async function train(rank: Rank, training: Training): Promise<object> {
  const { tier, numBackwards = 1 } = training;
  const store =
    tier === 'disk' ? await openDiskStore({ directory: await newDirectory() }) : undefined;
  const placement: Partial<FsdpOptions> =
    store !== undefined
      ? { offloadConfig: { store } }
      : { moveParamsToCpu: tier === 'host', moveGradsToCpu: tier.startsWith('host') };
  const { model } = shardedGpt2(rank, {
    config: { n_layer: 1 },
    fsdp: { ...training.fsdp, ...placement },
  });
  const groups = optimizerGroups(model);
  const optimizer: Optimizer<{ lr: number }> =
    training.optimizer === 'sgd'
      ? new Sgd(groups, { lr: 0.1, momentum: 0.9 })
      : new AdamW(groups, { lr: 1e-2 });
  const seen: number[] = [];
  const { worldSize, device } = rank;
  const rows = { batch: 2 * worldSize, first: 2 * rank.rank, count: 2 };
  for (let step = 0; step < STEPS; step++) {
    for (let index = 0; index < numBackwards; index++) {
      const run = () => forwardBackward(device, model, step * numBackwards + index, rows);
      const isLast = index === numBackwards - 1;
      seen.push(await (training.isSyncing === false && !isLast ? model.noSync(run) : run()));
    }
    await device.scope(async () => {
      const { clip } = training;
      const clipped = clip === undefined ? undefined : await clipGradNorm(model, clip);
      if (clipped !== undefined) {
        seen.push(await clipped.norm.item());
      }
      await optimizer.step(clipped && { gradScale: clipped.scale });
    });
    optimizer.zeroGrad();
  }
  const weights = await stateDict(model);
  const { live } = device.memory();
  if (tier === 'host' || tier === 'disk') {
    expect(live).toMatchObject({ parameter: 0, gradient: 0, optimizer: 0, staging: 0 });
  }
  optimizer.dispose();
  model.dispose();
  await store?.close();
  expect(device.memory().live.total).toBe(0);
  return { seen, weights: bitsOf(weights) };
}

describe('training from host or disk is bit-equal to training on the device', () => {
  const mixed = { mixedPrecision: true, computeDType: 'f16' } as const;
  const cases: readonly (readonly [string, number, Omit<Training, 'tier'>])[] = [
    ['f32', 2, {}],
    ['f32, one rank', 1, {}],
    ['f32, clipped', 4, { clip: 0.3 }],
    ['f32, SGD', 2, { optimizer: 'sgd' }],
    ['f16', 2, { fsdp: mixed }],
    ['f16, one rank', 1, { fsdp: mixed }],
    [
      'bf16, reduced in f32, clipped',
      2,
      {
        fsdp: { mixedPrecision: true, computeDType: 'bf16', fp32ReduceScatter: true },
        clip: 0.3,
      },
    ],
    ['without resharding', 2, { fsdp: { reshardAfterForward: false } }],
    ['unflattened', 2, { fsdp: { flattenParameters: false } }],
    ['three backwards a step', 2, { numBackwards: 3, clip: 1 }],
    ['three backwards a step, f16, clipped', 2, { fsdp: mixed, numBackwards: 3, clip: 0.5 }],
    ['three backwards a step, in noSync', 2, { numBackwards: 3, isSyncing: false, clip: 1 }],
    ['three backwards a step, one rank', 1, { numBackwards: 3 }],
  ];
  it.each(cases)('%s', async (_, worldSize, training) => {
    const run = (tier: Training['tier']) =>
      onRanks(worldSize, (rank) => train(rank, { ...training, tier }));
    const resident = await run('device');
    for (const tier of ['host', 'disk', 'host gradients'] as const) {
      expect(await run(tier), tier).toEqual(resident);
    }
  });

  it('replicas of shards', async () => {
    const run = (tier: Training['tier']) =>
      onRanks(4, async (rank) => {
        const processGroup = await rank.group.split(Math.floor(rank.rank / 2));
        const replicateGroup = await rank.group.split(rank.rank % 2);
        return train(rank, { fsdp: { processGroup, replicateGroup }, numBackwards: 2, tier });
      });
    const resident = await run('device');
    for (const tier of ['host', 'disk'] as const) {
      expect(await run(tier), tier).toEqual(resident);
    }
  });

  it.each([1, 3])('training on the cpu device is bit-equal, %i ranks', async (worldSize) => {
    const backend = await createCpuBackend({ threads: 1 });
    const cases: readonly Omit<Training, 'tier'>[] = [
      { numBackwards: 2, clip: 0.3 },
      { fsdp: { mixedPrecision: true, computeDType: 'f16' }, numBackwards: 2 },
      { fsdp: { mixedPrecision: true, computeDType: 'bf16' }, clip: 0.3 },
    ];
    for (const training of cases) {
      const run = (tier: Training['tier']) =>
        onRanks(worldSize, (rank) => train(rank, { ...training, tier }), { backend });
      const resident = await run('device');
      for (const tier of ['host', 'disk', 'host gradients'] as const) {
        expect(await run(tier), tier).toEqual(resident);
      }
    }
    await backend.dispose();
  });
});
