// These tests check which elements each rank drops, with and without beginStep.

import { FullyShardedDataParallel } from '@shardweave/fsdp';
import { Dropout, Linear, type Module, Sequential } from '@shardweave/nn';
import type { Device, Tensor } from '@shardweave/tensor-core';
import { expect, it } from 'vitest';
import { onRanks, type Rank } from '../../../tooling/test-kit/index.ts';

const ROWS = 4;
const WIDTH = 32;

/** Returns an identity layer followed by dropout, so that the output shows the mask. */
function masked(device: Device): Sequential {
  const linear = new Linear(device, { inFeatures: WIDTH, outFeatures: WIDTH });
  const eye = Array.from({ length: WIDTH ** 2 }, (_, i) => (i % (WIDTH + 1) === 0 ? 1 : 0));
  device.scope(() => {
    device.noGrad(() => {
      device.copyInto(linear.weight, device.tensor(new Float32Array(eye), [WIDTH, WIDTH]));
      device.copyInto(linear.bias!, device.zeros([WIDTH]));
    });
  });
  return new Sequential(device, [linear, new Dropout(device, { p: 0.5 })]);
}

/** Returns the dropout mask for `rows` rows of ones. */
function maskOf(model: Module, rows: number): Promise<number[]> {
  const { device } = model;
  return device.scope(async () => {
    const x = device.full([rows, WIDTH], 1);
    return [...(await ((await model.call(x)) as Tensor).toArray())];
  });
}

/**
 * Returns the masks of all ranks, of which every `numShards` share one copy of the parameters. All
 * of them share the batch.
 */
async function masksOf(
  worldSize: number,
  numShards: number,
  body: (rank: Rank, model: Module) => Promise<number[]>,
): Promise<number[][]> {
  return onRanks(worldSize, async (rank) => {
    const shards = await rank.group.split(Math.floor(rank.rank / numShards));
    const replicas = await rank.group.split(rank.rank % numShards);
    const inner = masked(rank.device);
    const model = new FullyShardedDataParallel(inner, {
      processGroup: shards,
      ...(replicas.worldSize > 1 ? { replicateGroup: replicas } : {}),
    });
    return body(rank, model);
  });
}

it('ranks drop different elements where nobody begins steps, replicas too', async () => {
  for (const [worldSize, numShards] of [
    [3, 3],
    [6, 3],
    [2, 1],
  ] as const) {
    const masks = await masksOf(worldSize, numShards, (_, model) => maskOf(model, ROWS));
    expect(new Set(masks.map(String)).size).toBe(worldSize);
    for (const mask of masks) {
      expect(new Set(mask)).toEqual(new Set([0, 2]));
    }
  }
});

it('ranks drop the elements of their rows in the global batch, bit for bit, where steps are begun', async () => {
  const masks = await masksOf(3, 3, async ({ rank, device }, model) => {
    await maskOf(model, ROWS); // This draws from the rank's stream.
    device.random.begin({ step: 5, rowOffset: rank * ROWS });
    return maskOf(model, ROWS);
  });
  const [whole] = await onRanks(1, async ({ device }) => {
    const model = masked(device);
    device.random.begin({ step: 5, rowOffset: 0 });
    return maskOf(model, 3 * ROWS);
  });
  expect(masks.flat()).toEqual(whole);
});
