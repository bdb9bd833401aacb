// Any strategy loads the save of any other and trains on. The next steps are those of a run that
// was never interrupted: ten in the long run, four in the short one.

import { rm } from 'node:fs/promises';
import { type PieceStore, piecesIn } from '@shardweave/checkpoint';
import { DistributedDataParallel } from '@shardweave/ddp-buckets';
import * as fsdp from '@shardweave/fsdp';
import * as nn from '@shardweave/nn';
import * as offload from '@shardweave/offload';
import { createHostStore, type ShardStore } from '@shardweave/shard-store';
import { openDiskStore } from '@shardweave/shard-store/node';
import { crossEntropy, type Device, type Tensor } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { onRanks, type Rank } from '../../../tooling/test-kit/ranks.js';

const ROWS = 24; // This is a multiple of every number of ranks below.
const NUM_BEFORE = 3;
const NUM_AFTER = process.env.SHARDWEAVE_LONG === '1' ? 10 : 4;
const TOLERANCE = 2e-6;

interface Run {
  readonly model: nn.Module<[x: Tensor], Tensor>;
  readonly optimizer: nn.AdamW;
  /** Saves. Every rank calls it. */
  save(store: PieceStore): Promise<void>;
  load(store: PieceStore): Promise<unknown>;
}

interface Strategy {
  readonly name: string;
  readonly numRanks: number;
  open(rank: Rank): Run | Promise<Run>;
}

const directories: string[] = [];
const stores: ShardStore[] = [];
afterAll(async () => {
  await Promise.all(stores.map((store) => store.close()));
  await Promise.all(directories.map((path) => rm(path, { recursive: true, force: true })));
});

async function diskStore(): Promise<ShardStore> {
  const directory = newFolder();
  directories.push(directory);
  const store = await openDiskStore({ directory });
  stores.push(store);
  return store;
}

function sequence(device: Device): nn.Sequential<[x: Tensor], Tensor> {
  return new nn.Sequential(device, [
    new nn.Linear(device, { inFeatures: 9, outFeatures: 45 }),
    new nn.Gelu(device),
    new nn.LayerNorm(device, { normalizedShape: 45 }),
    new nn.Linear(device, { inFeatures: 45, outFeatures: 7 }),
  ]);
}

/**
 * AdamW with two groups, decayed and not, as trainers have them. Both groups occur in every flat.
 */
function adamW(parameters: readonly Tensor[]): nn.AdamW {
  const isMatrix = ({ shape }: Tensor) => shape.length > 1;
  return new nn.AdamW(
    [
      { params: parameters.filter(isMatrix), weightDecay: 0.1 },
      { params: parameters.filter((each) => !isMatrix(each)), weightDecay: 0 },
    ],
    { lr: 1e-2 },
  );
}

/** The model with its optimizer; saves and loads are the same functions under every strategy. */
function runOf(model: Run['model']): Run {
  const optimizer = adamW(model.parameters());
  return {
    model,
    optimizer,
    save: (store) => nn.saveCheckpoint(model, store, { optimizer, extra: { step: NUM_BEFORE } }),
    load: (store) => nn.loadCheckpoint(model, store, { optimizer }),
  };
}

function single({ device }: Rank, options: { readonly isPacked: boolean }): Run {
  const model = sequence(device);
  if (options.isPacked) {
    nn.packParameters(model);
  }
  return runOf(model);
}

function ddp({ device, group }: Rank): Run {
  return runOf(new DistributedDataParallel(sequence(device), { processGroup: group }));
}

function sharded({ device, group }: Rank, options: Partial<fsdp.FsdpOptions>): Run {
  const wrap = <M extends nn.Module>(module: M) =>
    new fsdp.FullyShardedDataParallel(module, { processGroup: group, ...options });
  const inner = sequence(device);
  inner.replaceChild('3', wrap(inner.children().get('3')!));
  return runOf(wrap(inner));
}

function offloaded({ device }: Rank, store: ShardStore): Run {
  return runOf(new offload.OffloadModel(sequence(device), { store, numSlices: 2 }));
}

const STRATEGIES: readonly Strategy[] = [
  { name: 'single', numRanks: 1, open: (rank) => single(rank, { isPacked: false }) },
  { name: 'single, packed', numRanks: 1, open: (rank) => single(rank, { isPacked: true }) },
  { name: 'ddp at 2', numRanks: 2, open: ddp },
  ...[1, 2, 3, 4].map((numRanks) => ({
    name: `fsdp at ${numRanks}`,
    numRanks,
    open: (rank: Rank) => sharded(rank, {}),
  })),
  {
    name: 'fsdp at 2, shards on the host',
    numRanks: 2,
    open: (rank) => sharded(rank, { moveParamsToCpu: true, flattenParameters: false }),
  },
  { name: 'offload to the host', numRanks: 1, open: (rank) => offloaded(rank, createHostStore()) },
  {
    name: 'offload to disk',
    numRanks: 1,
    open: async (rank) => offloaded(rank, await diskStore()),
  },
];

/** The mean loss of the global batch for each step, as every rank computes it. */
async function train(rank: Rank, { model, optimizer }: Run, steps: readonly number[]) {
  const { device, group } = rank;
  const count = ROWS / rank.worldSize;
  const losses: number[] = [];
  for (const step of steps) {
    const row = (i: number) => i + rank.rank * count;
    const x = Float32Array.from({ length: count * 9 }, (_, i) =>
      Math.sin(1.3 * (row(Math.floor(i / 9)) * 9 + (i % 9)) + step),
    );
    const targets = Int32Array.from({ length: count }, (_, i) => (row(i) * 3 + step) % 7);
    const loss = await device.scope(async () => {
      const logits = await model.call(device.tensor(x, [count, 9]));
      const result = crossEntropy(logits, device.tensor(targets, [count]));
      await result.backward();
      return result.item();
    });
    await optimizer.step();
    optimizer.zeroGrad();
    const mean = Float32Array.of(loss);
    const bytes = new Uint8Array(mean.buffer);
    await group.allReduce(bytes, bytes, { dtype: 'f32', op: 'mean' });
    losses.push(mean[0]!);
  }
  return losses;
}

const range = (start: number, end: number) =>
  Array.from({ length: end - start }, (_, i) => start + i);

/**
 * Opens a strategy on all its ranks with kernels that sum in f64, and runs `body`. Every rank
 * returns the same.
 */
async function on<T>(strategy: Strategy, body: (rank: Rank, run: Run) => Promise<T>): Promise<T> {
  const [result] = await onRanks(
    strategy.numRanks,
    async (rank) => body(rank, await strategy.open(rank)),
    { backend: createReferenceBackend() },
  );
  return result!;
}

const saves = new Map<string, PieceStore>();
let unbroken: readonly number[] = [];

beforeAll(async () => {
  for (const strategy of STRATEGIES) {
    const store = piecesIn(createHostStore());
    await on(strategy, async (rank, run) => {
      await train(rank, run, range(0, NUM_BEFORE));
      await run.save(store);
    });
    saves.set(strategy.name, store);
  }
  const [first] = STRATEGIES as [Strategy];
  const steps = range(0, NUM_BEFORE + NUM_AFTER);
  unbroken = (await on(first, (rank, run) => train(rank, run, steps))).slice(NUM_BEFORE);
});

describe.each(STRATEGIES.map((each) => [each.name, each] as const))('%s', (_, strategy) => {
  it.each(STRATEGIES.map(({ name }) => name))('trains on from what %s saved', async (name) => {
    const losses = await on(strategy, async (rank, run) => {
      // This gives the run a state of its own, which the load has to replace.
      await train(rank, run, [20]);
      run.optimizer.groups[0]!.lr = 0.5;
      expect(await run.load(saves.get(name)!)).toEqual({ step: NUM_BEFORE });
      return train(rank, run, range(NUM_BEFORE, NUM_BEFORE + NUM_AFTER));
    });
    for (const [i, loss] of losses.entries()) {
      expect(Math.abs(loss - unbroken[i]!), `step ${i}`).toBeLessThanOrEqual(TOLERANCE);
    }
  });
});
