// Sharded training is compared with one process on the same global batches.

import { AdamW, clipGradNorm, Sgd, stateDict } from '@shardweave/nn';
import type { Backend } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  forwardBackward,
  onRanks,
  optimizerGroups,
  type Rank,
  shardedGpt2,
  singleRun,
} from './support/ranks.js';

const STEPS = 10;

let backend: Backend;
beforeAll(async () => {
  backend = await createCpuBackend({ threads: 1 });
});
afterAll(() => backend.dispose());

/** Returns the rows of a step: at least 24, and the same number on each rank. */
const batchOf = (worldSize: number) => Math.ceil(24 / worldSize) * worldSize;

/** One unsharded run for all world sizes with the same batch. */
const singles = new Map<string, ReturnType<typeof singleRun>>();
function single(batch: number, options: Parameters<typeof singleRun>[2]) {
  const key = JSON.stringify([batch, options]);
  const run = singles.get(key) ?? singleRun(STEPS, batch, { ...options, backend });
  singles.set(key, run);
  return run;
}

async function shardedRun(
  worldSize: number,
  options: {
    readonly optimizer?: 'adamw' | 'sgd';
    readonly isResharding?: boolean;
    readonly dropout?: number;
    readonly clip?: number;
  } = {},
) {
  const batch = batchOf(worldSize);
  const config = { embd_pdrop: options.dropout ?? 0, attn_pdrop: options.dropout ?? 0 };
  const train = async (rank: Rank) => {
    const { model } = shardedGpt2(rank, {
      config,
      fsdp: { reshardAfterForward: options.isResharding ?? true },
    });
    const groups = optimizerGroups(model);
    const optimizer =
      options.optimizer === 'sgd'
        ? new Sgd(groups, { lr: 0.1, momentum: 0.9 })
        : new AdamW(groups, { lr: 1e-2 });
    const losses: number[] = [];
    const count = batch / worldSize;
    for (let step = 0; step < STEPS; step++) {
      const rows = { batch, first: rank.rank * count, count };
      losses.push(await forwardBackward(rank.device, model, step, rows));
      await rank.device.scope(async () => {
        const { clip } = options;
        const clipped = clip === undefined ? undefined : await clipGradNorm(model, clip);
        await optimizer.step(clipped && { gradScale: clipped.scale });
      });
      optimizer.zeroGrad();
    }
    const weights = await stateDict(model);
    optimizer.dispose();
    model.dispose();
    return { losses, weights, live: rank.device.memory().live.total };
  };
  const perRank = await onRanks(worldSize, train, { backend });
  const losses = perRank[0]!.losses.map(
    (_, step) => perRank.reduce((sum, { losses }) => sum + losses[step]!, 0) / worldSize,
  );
  return { losses, weights: perRank[0]!.weights, live: perRank.map(({ live }) => live) };
}

function floats(bytes: Uint8Array): Float32Array {
  return new Float32Array(bytes.slice().buffer);
}

describe.each([1, 2, 3, 4, 5, 6, 7, 8])('world size %i equals one process', (worldSize) => {
  it('the losses of AdamW steps are equal, to 2e-6 relative', async () => {
    const expected = await single(batchOf(worldSize), {});
    const sharded = await shardedRun(worldSize);
    sharded.losses.forEach((loss, step) => {
      expect(Math.abs(loss / expected.losses[step]! - 1)).toBeLessThan(2e-6);
    });
    expect(expected.losses.at(-1)).toBeLessThan(expected.losses[0]! - 0.05); // The model did learn.
    expect(sharded.live).toEqual(Array(worldSize).fill(0));
  });

  it('the weights after SGD steps with momentum and clipping are equal, to 1e-6 absolute', async () => {
    const { weights } = await single(batchOf(worldSize), { optimizer: 'sgd', clip: 0.3 });
    const sharded = await shardedRun(worldSize, { optimizer: 'sgd', clip: 0.3 });
    expect([...sharded.weights.keys()]).toEqual([...weights.keys()]);
    for (const [name, { data }] of sharded.weights) {
      const expected = weights.get(name)!;
      floats(data).forEach((value, i) => {
        if (Math.abs(value - expected[i]!) > 1e-6) {
          expect.fail(`${name}[${i}]: expected ${expected[i]}, got ${value}`);
        }
      });
    }
  });
});

it('keeps dropout masks equal however the rows are spread', async () => {
  const expected = await single(batchOf(3), { dropout: 0.2 });
  const { losses } = await shardedRun(3, { dropout: 0.2 });
  losses.forEach((loss, step) => {
    expect(Math.abs(loss / expected.losses[step]! - 1)).toBeLessThan(2e-6);
  });
});

it('gives equal bits with and without resharding', async () => {
  const [resharded, kept] = await Promise.all([
    shardedRun(3, { isResharding: true }),
    shardedRun(3, { isResharding: false }),
  ]);
  expect(kept.losses).toEqual(resharded.losses);
  for (const [name, { data }] of kept.weights) {
    expect(Buffer.compare(data, resharded.weights.get(name)!.data), name).toBe(0);
  }
});
