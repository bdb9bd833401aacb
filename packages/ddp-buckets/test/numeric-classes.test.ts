// When ranks have several numeric classes, the program is told, and all of them have one norm.

import { createMemoryGroup } from '@shardweave/collectives';
import { DistributedDataParallel } from '@shardweave/ddp-buckets';
import { clipGradNorm, gradNorm, Linear, Sgd, scaleGradients } from '@shardweave/nn';
import { crossEntropy, Device } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { expect, it } from 'vitest';
import { sharedBackend } from '../../../tooling/test-kit/ranks.ts';

// These are the classes of this host, whose products may be fused.
const CPU = await new Device(await sharedBackend()).numericClass();
const REFERENCE = await new Device(createReferenceBackend()).numericClass();

const SIZE = 64;

/**
 * The factor by which the other class's gradients are larger: more than any rounding, so that it
 * shows.
 */
const NUDGE = 1 + 2 ** -10;

async function trainedOn(kinds: readonly ('cpu' | 'reference')[], maxNorm: number) {
  const groups = createMemoryGroup(kinds.length);
  const results = await Promise.all(
    groups.map(async (group, rank) => {
      const backend = kinds[rank] === 'cpu' ? await sharedBackend() : createReferenceBackend();
      const device = new Device(backend, { seed: 3 });
      const bare = new Linear(device, { inFeatures: SIZE, outFeatures: SIZE });
      const ddp = new DistributedDataParallel(bare, { processGroup: group });
      const values = Float32Array.from({ length: SIZE }, (_, i) => Math.sin(i + rank));
      const loss = await ddp.call(device.tensor(values, [1, SIZE]));
      await device.backward(crossEntropy(loss, device.tensor(Uint32Array.of(rank), [1])));
      if (kinds[rank] === 'reference') {
        const factor = device.full([1], NUDGE);
        await scaleGradients(bare, factor);
      }
      const own = await gradNorm(bare);
      const before = group.stats().broadcasts;
      const norm = await gradNorm(ddp);
      const broadcasts = group.stats().broadcasts - before;
      const clipped = await clipGradNorm(ddp, maxNorm);
      expect(await clipped.norm.item()).toBe(Math.fround(norm));
      await scaleGradients(ddp, clipped.scale);
      const gradient = [...(await bare.weight.grad!.toArray())];
      return { own, norm, broadcasts, gradient, classes: ddp.numericClasses };
    }),
  );
  await Promise.all(groups.map((group) => group.close()));
  return results;
}

it('ranks of one class say so, and compute the norm without a message', async () => {
  const [first, second] = await trainedOn(['cpu', 'cpu'], 0.01);
  expect(first!.classes).toEqual([CPU]);
  expect(second).toEqual(first);
  expect([first!.norm, first!.broadcasts]).toEqual([first!.own, 0]);
});

it('ranks of two classes say so, and clip by the norm of rank 0', async () => {
  const [first, second] = await trainedOn(['cpu', 'reference'], 0.01);
  expect(first!.classes).toEqual([CPU, REFERENCE]);
  expect(second!.classes).toEqual(first!.classes);
  expect(second!.own / first!.own).toBeCloseTo(NUDGE, 6);
  expect([first!.norm, second!.norm]).toEqual([first!.own, first!.own]);
  // Both are clipped by the same factor, so the ratio is as before.
  const [a, b] = [Math.max(...first!.gradient), Math.max(...second!.gradient)];
  expect(b / a).toBeCloseTo(NUDGE, 6);
});

it('syncParameters with onlyTrained sends what a step has changed, and no more', async () => {
  const groups = createMemoryGroup(2);
  const found = await Promise.all(
    groups.map(async (group, rank) => {
      const device = new Device(await sharedBackend(), { seed: 3 });
      const bare = new Linear(device, { inFeatures: SIZE, outFeatures: SIZE });
      bare.bias!.requiresGrad = false;
      const ddp = new DistributedDataParallel(bare, { processGroup: group });
      await ddp.initialize();
      const values = Float32Array.from({ length: SIZE }, (_, i) => Math.sin(i + rank));
      await ddp.noSync(async () => {
        const loss = await ddp.call(device.tensor(values, [1, SIZE]));
        await device.backward(crossEntropy(loss, device.tensor(Uint32Array.of(rank), [1])));
      });
      await new Sgd([bare.weight], { lr: 1 }).step();
      const stepped = [...(await bare.weight.toArray())];
      const before = group.stats().bytesSent;
      await ddp.syncParameters({ onlyTrained: true });
      const sent = group.stats().bytesSent - before;
      return { stepped, sent, weight: [...(await bare.weight.toArray())] };
    }),
  );
  const [first, second] = found;
  expect(second!.stepped).not.toEqual(first!.stepped);
  expect([first!.weight, second!.weight]).toEqual([first!.stepped, first!.stepped]);
  expect([first!.sent, second!.sent]).toEqual([4 * SIZE * SIZE, 0]);
  await Promise.all(groups.map((group) => group.close()));
});
