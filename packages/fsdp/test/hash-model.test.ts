// Shards are hashed where they rest, and their hash is that of one process with the same values.

import { hashModel, loadCheckpoint } from '@shardweave/nn';
import { Device } from '@shardweave/tensor-core';
import { expect, it } from 'vitest';
import { onRanks } from '../../../tooling/test-kit/index.ts';
import { adam, net, saved } from './support/saved-models.js';

it('gives one hash at 1, 2, 3 and 8 ranks, whose shards cut leaves', async () => {
  const { files } = await saved(2);
  const hashes = await Promise.all(
    [1, 2, 3, 8].map((worldSize) =>
      onRanks(worldSize, async (rank) => {
        const device = new Device(rank.device.backend, { seed: 100 });
        const model = net({ ...rank, device });
        const optimizer = adam(model);
        await loadCheckpoint(model, files, { optimizer });
        return hashModel(model, { optimizer });
      }),
    ),
  );
  expect(new Set(hashes.flat()).size).toBe(1);
});
