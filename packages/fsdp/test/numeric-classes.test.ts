// Ranks of several numeric classes train together, and the program is told.

import { createMemoryGroup, type ProcessGroup } from '@shardweave/collectives';
import { type FsdpOptions, FullyShardedDataParallel } from '@shardweave/fsdp';
import { Linear } from '@shardweave/nn';
import { Device, type Tensor } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { expect, it } from 'vitest';
import { sharedBackend } from '../../../tooling/vitest/training-ranks.ts';

// The classes are those of this host, whose products may be fused.
const CPU = await new Device(await sharedBackend()).numericClass();
const REFERENCE = await new Device(createReferenceBackend()).numericClass();

/** What a model says after one call, rank by rank. */
async function saidOn(
  kinds: readonly string[],
  optionsOf: (group: ProcessGroup) => Promise<FsdpOptions>,
) {
  const groups = createMemoryGroup(kinds.length);
  const said = await Promise.all(
    groups.map(async (group, rank) => {
      const backend = kinds[rank] === 'cpu' ? await sharedBackend() : createReferenceBackend();
      const device = new Device(backend, { seed: 3 });
      const inner = new FullyShardedDataParallel<[Tensor], Tensor>(
        new Linear(device, { inFeatures: 4, outFeatures: 4 }),
        await optionsOf(group),
      );
      expect(inner.numericClasses).toEqual([]);
      await inner.call(device.tensor(new Float32Array(4), [1, 4]));
      return { classes: inner.numericClasses, text: String(inner) };
    }),
  );
  await Promise.all(groups.map((group) => group.close()));
  return said;
}

it('are all of one on equal devices, and none are compared on one rank', async () => {
  const sharded = async (group: ProcessGroup) => ({ processGroup: group });
  for (const { classes, text } of await saidOn(['cpu', 'cpu'], sharded)) {
    expect(classes).toEqual([CPU]);
    expect(text).not.toContain('numeric');
  }
  const [alone] = await saidOn(['cpu'], sharded);
  expect(alone!.classes).toEqual([]);
});

it.each<[string, (group: ProcessGroup) => Promise<FsdpOptions>]>([
  ['shards', async (group) => ({ processGroup: group })],
  [
    'replicas',
    async (group) => ({ processGroup: await group.split(group.rank), replicateGroup: group }),
  ],
])('are told over %s', async (_, optionsOf) => {
  for (const { classes, text } of await saidOn(['reference', 'cpu'], optionsOf)) {
    expect(classes).toEqual([CPU, REFERENCE]);
    expect(text).toContain('ranks of 2 numeric classes');
  }
});
