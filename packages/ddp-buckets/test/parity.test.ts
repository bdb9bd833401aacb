// Data-parallel training is compared with one process, with sharded training and with its own
// specification, on the same global batches.

import type { DdpOptions } from '@shardweave/ddp-buckets';
import { naiveAllReduce } from '@shardweave/ddp-buckets/apex';
import { FullyShardedDataParallel } from '@shardweave/fsdp';
import { clipGradNorm, type Module, stateDict } from '@shardweave/nn';
import type { Tensor } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';
import {
  forwardBackward,
  makeOptimizer,
  onRanks,
  type Rank,
  SMALL_BUCKETS,
  tinyGpt2,
  weightsOf,
  wrap,
} from './support/ranks.js';

const STEPS = 20;
const BATCH = 12; // Every world size below divides it.

interface Run {
  readonly losses: number[];
  /** The norms of runs that clip. */
  readonly norms: number[];
  readonly weights: Map<string, Float32Array>;
}

/**
 * The kernels that compute. The reference sums in f64, so that a remaining difference from one
 * process comes from this package: this model amplifies f32's rounding of sums a hundredfold.
 */
type Kernels = 'cpu' | 'reference';

/** Trains on `worldSize` ranks; the losses are means over ranks, and the weights are rank 0's. */
async function run(
  worldSize: number,
  optimizer: 'adamw' | 'sgd',
  prepare: (rank: Rank) => {
    readonly model: Module;
    readonly reduce?: () => Promise<void>;
    /** Bounds the gradients, or returns the factor by which the optimizer multiplies them. */
    readonly clip?: () => Promise<{ readonly norm: number; readonly gradScale?: Tensor }>;
    readonly weights: () => Promise<Map<string, Float32Array>>;
  },
  kernels: Kernels = optimizer === 'sgd' ? 'reference' : 'cpu',
): Promise<Run> {
  const backend =
    kernels === 'cpu' ? await createCpuBackend({ threads: 1 }) : createReferenceBackend();
  const perRank = await onRanks(
    worldSize,
    async (rank) => {
      const { model, reduce, clip, weights } = prepare(rank);
      const stepper = makeOptimizer(model, optimizer);
      const losses: number[] = [];
      const norms: number[] = [];
      const count = BATCH / worldSize;
      for (let step = 0; step < STEPS; step++) {
        const rows = { batch: BATCH, first: rank.rank * count, count };
        losses.push(await forwardBackward(rank.device, model, step, rows));
        await reduce?.();
        await rank.device.scope(async () => {
          const clipped = await clip?.();
          norms.push(...(clipped === undefined ? [] : [clipped.norm]));
          await stepper.step({ gradScale: clipped?.gradScale });
        });
        stepper.zeroGrad();
      }
      return { losses, norms, weights: await weights() };
    },
    { backend },
  );
  await backend.dispose();
  const losses = perRank[0]!.losses.map(
    (_, step) => perRank.reduce((sum, { losses }) => sum + losses[step]!, 0) / worldSize,
  );
  const [{ norms, weights }] = perRank as [(typeof perRank)[number]];
  for (const other of perRank) {
    expect(other.weights).toEqual(weights);
    expect(other.norms).toEqual(norms);
  }
  return { losses, norms, weights };
}

/** The single-process runs, made once and compared with every world size. */
const single = {
  adamw: undefined as Promise<Run> | undefined,
  sgd: undefined as Promise<Run> | undefined,
};

function singleRun(optimizer: 'adamw' | 'sgd'): Promise<Run> {
  single[optimizer] ??= plainRun(1, optimizer);
  return single[optimizer];
}

function plainRun(worldSize: number, optimizer: 'adamw' | 'sgd') {
  return run(worldSize, optimizer, ({ device, group }) => {
    const model = tinyGpt2(device);
    const reduce = () => naiveAllReduce(model.parameters(), { processGroup: group });
    return { model, reduce, weights: () => weightsOf(model) };
  });
}

function ddpRun(
  worldSize: number,
  optimizer: 'adamw' | 'sgd',
  options: Partial<DdpOptions> = SMALL_BUCKETS,
) {
  return run(worldSize, optimizer, (rank) => {
    const model = wrap(tinyGpt2(rank.device), rank, options);
    return { model, weights: () => weightsOf(model) };
  });
}

/** Runs with AdamW and small buckets, made once, since several runs are compared with each. */
const replicated = new Map<number, Promise<Run>>();

function adamRun(worldSize: number): Promise<Run> {
  const known = replicated.get(worldSize) ?? ddpRun(worldSize, 'adamw');
  replicated.set(worldSize, known);
  return known;
}

/** A bound below the norm of every step, so that all steps are clipped. */
const MAX_NORM = 0.05;

function clippedDdpRun(worldSize: number) {
  return run(worldSize, 'adamw', (rank) => {
    const model = wrap(tinyGpt2(rank.device), rank, SMALL_BUCKETS);
    const clip = async () => {
      const { norm, scale } = await clipGradNorm(model, MAX_NORM);
      return { norm: await norm.item(), gradScale: scale };
    };
    return { model, clip, weights: () => weightsOf(model) };
  });
}

function fsdpRun(
  worldSize: number,
  reshardAfterForward: boolean,
  { isClipped = false }: { readonly isClipped?: boolean } = {},
) {
  return run(worldSize, 'adamw', ({ device, group }) => {
    const gpt2 = tinyGpt2(device);
    const options = { processGroup: group, reshardAfterForward };
    for (const name of [...gpt2.children().keys()].slice(1, -1)) {
      const block = gpt2.children().get(name)!;
      gpt2.replaceChild(name, new FullyShardedDataParallel(block, options));
    }
    const model = new FullyShardedDataParallel(gpt2, options);
    const weights = async () => {
      const entries = [...(await stateDict(model))];
      return new Map(
        entries.map(([name, { data }]) => [name, new Float32Array(data.slice().buffer)] as const),
      );
    };
    const clip = async () => {
      const { norm, scale } = await clipGradNorm(model, MAX_NORM);
      return { norm: await norm.item(), gradScale: scale };
    };
    return { model, weights, ...(isClipped ? { clip } : {}) };
  });
}

function expectEqualBits(actual: Run, expected: Run): void {
  expect(actual.losses).toEqual(expected.losses);
  expect(actual.norms).toEqual(expected.norms);
  expect([...actual.weights.keys()].sort()).toEqual([...expected.weights.keys()].sort());
  for (const [name, values] of actual.weights) {
    const [a, b] = [values, expected.weights.get(name)!].map((x) => Buffer.from(x.slice().buffer));
    expect(Buffer.compare(a!, b!), name).toBe(0);
  }
}

describe.each([1, 2, 3, 4])('world size %i', (worldSize) => {
  it('equals one process in the losses of 20 AdamW steps, to 2e-6', async () => {
    const expected = await singleRun('adamw');
    const { losses } = await adamRun(worldSize);
    losses.forEach((loss, step) => {
      expect(Math.abs(loss - expected.losses[step]!), `step ${step}`).toBeLessThan(2e-6);
    });
    expect(losses.at(-1)).toBeLessThan(losses[0]! - 0.05); // The model did learn.
  });
});

describe.each([2, 4])('world size %i', (worldSize) => {
  it('equals one process in the weights after 20 SGD steps, to 1e-6', async () => {
    const expectedRun = await singleRun('sgd');
    const { weights } = await ddpRun(worldSize, 'sgd');
    for (const [name, values] of weights) {
      const expected = expectedRun.weights.get(name)!;
      const worst = values.reduce((max, x, i) => Math.max(max, Math.abs(x - expected[i]!)), 0);
      expect(worst, name).toBeLessThan(1e-6);
    }
  });
});

describe.each([2, 3, 4])('%i ranks, 20 AdamW steps in f32, bit for bit', (worldSize) => {
  it('equal fsdp, resharding or not', async () => {
    const ddp = await adamRun(worldSize);
    expectEqualBits(ddp, await fsdpRun(worldSize, true));
    expectEqualBits(ddp, await fsdpRun(worldSize, false));
  });

  it('equal fsdp where gradients are clipped, norms and all', async () => {
    const ddp = await clippedDdpRun(worldSize);
    expect(Math.min(...ddp.norms)).toBeGreaterThan(MAX_NORM);
    expectEqualBits(ddp, await fsdpRun(worldSize, true, { isClipped: true }));
  });

  it('equal the naive version, an all-reduce for each parameter', async () => {
    const naive = await plainRun(worldSize, 'adamw');
    expectEqualBits(await adamRun(worldSize), naive);
    const retained = { ...SMALL_BUCKETS, retainAllreduceBuffers: true };
    expectEqualBits(await ddpRun(worldSize, 'adamw', retained), naive);
    expectEqualBits(await ddpRun(worldSize, 'adamw', { delayAllreduce: true }), naive);
  });
});
