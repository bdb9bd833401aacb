// Ranks of several numeric classes train together, and the program is told.

import { createMemoryGroup, type ProcessGroup } from '@shardweave/collectives';
import { type FsdpOptions, FullyShardedDataParallel, syncReplicas } from '@shardweave/fsdp';
import { Embedding, gradNorm, Linear, Sgd, scaleGradients, stateDict } from '@shardweave/nn';
import { crossEntropy, Device, type Tensor } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';
import { onRanks, sharedBackend } from '../../../tooling/test-kit/index.ts';

// These are the classes of this host, whose products may be fused.
const CPU = await new Device(await sharedBackend()).numericClass();
const REFERENCE = await new Device(createReferenceBackend()).numericClass();

/** Returns what a model reports after one call, rank by rank. */
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

it('ranks are one class on equal devices, and are not compared on one rank', async () => {
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
])('numeric classes are told over %s', async (_, optionsOf) => {
  for (const { classes, text } of await saidOn(['reference', 'cpu'], optionsOf)) {
    expect(classes).toEqual([CPU, REFERENCE]);
    expect(text).toContain('ranks of 2 numeric classes');
  }
});

it('a shard of several parts is made equal in all of them', async () => {
  const size = 2 ** 20 + 128; // parts of 4 MiB: one, and the beginning of another
  await onRanks(2, async ({ rank, device, group }) => {
    const inner = new Embedding(device, { numEmbeddings: size / 128, embeddingDim: 128 });
    const model = new FullyShardedDataParallel(inner, {
      processGroup: await group.split(rank),
      replicateGroup: group,
    });
    await model.initialize();
    const { flat } = model.units[0]!;
    const numbers = Float32Array.from({ length: size }, (_, i) => (rank === 0 ? i : -1));
    flat.storage.write(new Uint8Array(numbers.buffer));
    await syncReplicas(model);
    expect((await flat.toArray()).every((value, i) => value === i)).toBe(true);
  });
});

/**
 * The factor by which the second replica's gradients are larger: more than any rounding, so that it
 * shows.
 */
const NUDGE = 1 + 2 ** -10;

describe('replicas of two classes', () => {
  it.each([1, 2, 'no'] as const)(
    "have one norm, and the first one's weights when told to: %s shards",
    async (kind) => {
      const shards = kind === 'no' ? 1 : kind;
      const groups = createMemoryGroup(2 * shards);
      const found = await Promise.all(
        groups.map(async (group, rank) => {
          const isFirst = rank < shards;
          const device = new Device(isFirst ? await sharedBackend() : createReferenceBackend());
          const model = new FullyShardedDataParallel<[Tensor], Tensor>(
            new Linear(device, { inFeatures: 16, outFeatures: 4 }),
            kind === 'no'
              ? { processGroup: group, shardTrained: false }
              : {
                  processGroup: await group.split(Math.floor(rank / shards)),
                  replicateGroup: await group.split(rank % shards),
                },
          );
          const optimizer = new Sgd(model.parameters(), { lr: 1 });
          const logits = await model.call(device.full([1, 16], 0.5));
          await device.backward(crossEntropy(logits, device.tensor(Uint32Array.of(1), [1])));
          if (!isFirst) {
            const flats = model.instances().flatMap(({ units }) => units.map(({ flat }) => flat));
            await scaleGradients(flats, device.full([1], NUDGE));
          }
          const norm = await gradNorm(model);
          await optimizer.step();
          const weights = async () =>
            [...(await stateDict(model)).values()].map(({ data }) => [...data]);
          const before = await weights();
          await syncReplicas(model);
          const after = await weights();
          return { norm, before, after, called: await model.call(device.full([1, 16], 1)) };
        }),
      );
      const [first] = found;
      expect(found.at(-1)!.before).not.toEqual(first!.before);
      const said = await Promise.all(found.map(({ called }) => called.toArray()));
      for (const [rank, { norm, after }] of found.entries()) {
        expect(norm).toBe(first!.norm);
        expect(after).toEqual(first!.before);
        said[rank]!.forEach((value, i) => {
          expect(value).toBeCloseTo(said[0]![i]!, 5);
        });
      }
      await Promise.all(groups.map((group) => group.close()));
    },
  );
});
