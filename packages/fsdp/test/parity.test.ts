// Sharded training against one process, on the same global batches.

import { clipGradNorm, stateDict } from '@shardweave/fsdp';
import { AdamW, Sgd } from '@shardweave/nn';
import { describe, expect, it } from 'vitest';
import { forwardBackward, onRanks, optimizerGroups, shardedGpt2, singleRun } from './ranks.js';

const STEPS = 10;
const BATCH = 24; // divides by every world size below

async function shardedRun(
  worldSize: number,
  options: {
    readonly optimizer?: 'adamw' | 'sgd';
    readonly isResharding?: boolean;
    readonly dropout?: number;
    readonly clip?: number;
  } = {},
) {
  const config = { embd_pdrop: options.dropout ?? 0, attn_pdrop: options.dropout ?? 0 };
  const perRank = await onRanks(worldSize, async (rank) => {
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
    const count = BATCH / worldSize;
    for (let step = 0; step < STEPS; step++) {
      const rows = { batch: BATCH, first: rank.rank * count, count };
      losses.push(await forwardBackward(rank.device, model, step, rows));
      if (options.clip !== undefined) await clipGradNorm(model, options.clip);
      await optimizer.step();
      optimizer.zeroGrad();
    }
    const weights = await stateDict(model);
    optimizer.dispose();
    model.dispose();
    return { losses, weights, live: rank.device.memory().live.total };
  });
  const losses = perRank[0]!.losses.map(
    (_, step) => perRank.reduce((sum, { losses }) => sum + losses[step]!, 0) / worldSize,
  );
  return { losses, weights: perRank[0]!.weights, live: perRank.map(({ live }) => live) };
}

function floats(bytes: Uint8Array): Float32Array {
  return new Float32Array(bytes.slice().buffer);
}

describe.each([1, 2, 3, 4, 8])('world size %i equals one process', (worldSize) => {
  it('in the losses of AdamW steps, to 2e-6 relative', async () => {
    const single = await singleRun(STEPS, BATCH, {});
    const sharded = await shardedRun(worldSize);
    sharded.losses.forEach((loss, step) => {
      expect(Math.abs(loss - single.losses[step]!) / single.losses[step]!).toBeLessThan(2e-6);
    });
    expect(single.losses.at(-1)).toBeLessThan(single.losses[0]! - 0.05); // it did learn
    expect(sharded.live).toEqual(Array(worldSize).fill(0));
  });

  it('in the weights after SGD steps with momentum and clipping, to 1e-6 absolute', async () => {
    const single = await singleRun(STEPS, BATCH, { optimizer: 'sgd', clip: 0.3 });
    const sharded = await shardedRun(worldSize, { optimizer: 'sgd', clip: 0.3 });
    expect([...sharded.weights.keys()]).toEqual([...single.weights.keys()]);
    for (const [name, { data }] of sharded.weights) {
      const expected = single.weights.get(name)!;
      floats(data).forEach((value, i) => {
        if (Math.abs(value - expected[i]!) > 1e-6) {
          expect.fail(`${name}[${i}]: expected ${expected[i]}, got ${value}`);
        }
      });
    }
  });
});

it('keeps dropout masks equal however the rows are spread', async () => {
  const single = await singleRun(STEPS, BATCH, { dropout: 0.2 });
  const { losses } = await shardedRun(3, { dropout: 0.2 });
  losses.forEach((loss, step) => {
    expect(Math.abs(loss - single.losses[step]!) / single.losses[step]!).toBeLessThan(2e-6);
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
