// Shards are hashed where they rest, and their hash is that of one process with the same values.

import { hashModel, Linear, loadCheckpoint, ParameterInit } from '@shardweave/nn';
import { Device } from '@shardweave/tensor-core';
import { expect, it } from 'vitest';
import { onRanks, type Rank } from '../../../tooling/test-kit/index.ts';
import { adam, net, saved } from './support/saved-models.js';
import { wrapIn } from './support/sharding.js';

/** The hashes of all ranks at each world size; equal ones once. */
async function hashesOf(hash: (rank: Rank) => Promise<string>): Promise<Set<string>> {
  const found = await Promise.all([1, 2, 3, 8].map((worldSize) => onRanks(worldSize, hash)));
  return new Set(found.flat());
}

it('gives one hash at 1, 2, 3 and 8 ranks, with state, buffers, and leaves that are cut', async () => {
  const { files } = await saved(2);
  const hashes = await hashesOf(async (rank) => {
    const model = net({ ...rank, device: new Device(rank.device.backend, { seed: 100 }) });
    const optimizer = adam(model);
    await loadCheckpoint(model, files, { optimizer });
    return hashModel(model, { optimizer });
  });
  expect(hashes.size).toBe(1);
});

it('gives the hash of the plain module where shards begin with right halves of nodes', async () => {
  // It has 10 leaves, of which rank 2 of 3 has 7 to 9.
  const layer = ({ device }: Rank) => {
    const init = new ParameterInit(device, { seed: 3 });
    return new Linear(device, { inFeatures: 100, outFeatures: 100, init });
  };
  const hashes = await hashesOf(async (rank) => {
    const wrapped = await hashModel(wrapIn(rank)(layer(rank)));
    expect(wrapped).toBe(await hashModel(layer(rank)));
    return wrapped;
  });
  expect(hashes.size).toBe(1);
});
