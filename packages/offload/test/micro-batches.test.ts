// Micro-batches are compared with the whole batch: what depends only on rows is equal, and batch
// norms count the batch once.

import { BatchNorm1d, Linear, Module, Sequential } from '@shardweave/nn';
import { OffloadModel, type OffloadOptions } from '@shardweave/offload';
import { Device, mean, square, type Tensor } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';
import { expectClose } from '../../../tooling/test-kit/index.ts';

const DIM = 4;
const ROWS = 8; // It gives three parts of 3, 3 and 2 rows.

interface Case {
  readonly momentum?: number | 'cumulative';
  readonly build?: (norm: BatchNorm1d, device: Device) => Module[];
}

const inOneSlice = (norm: BatchNorm1d, device: Device) => [
  new Sequential(device, [new Linear(device, { inFeatures: DIM, outFeatures: DIM }), norm]),
  new Linear(device, { inFeatures: DIM, outFeatures: DIM }),
];

/** Returns the running statistics after three batches. */
async function statistics(options: OffloadOptions | undefined, of: Case = {}, isTraining = true) {
  const device = new Device(createReferenceBackend(), { seed: 6 });
  const norm = new BatchNorm1d(device, { numFeatures: DIM, momentum: of.momentum ?? 0.3 });
  const layers = (of.build ?? inOneSlice)(norm, device);
  const bare = new Sequential(device, layers);
  const model: Module = options === undefined ? bare : new OffloadModel(bare, options);
  if (!isTraining) {
    model.eval();
  }
  for (let batch = 0; batch < 3; batch++) {
    await device.scope(async () => {
      const data = Float32Array.from({ length: ROWS * DIM }, (_, i) => Math.sin(i + 5 * batch) * 3);
      await mean(square((await model.call(device.tensor(data, [ROWS, DIM]))) as Tensor)).backward();
    });
  }
  const found = new Map<string, number[]>();
  for (const [name, buffer] of norm.namedBuffers()) {
    found.set(name, [...(await buffer.toArray())]);
  }
  model.dispose();
  expect(device.memory().live.total).toBe(0); // Parts of batches are freed too.
  return found;
}

describe.each([true, false])('batch norms, checkpointing %s', (checkpointActivation) => {
  it.each([1, 2, 3, 4])(
    'count a batch once, by the moments of all its rows, in %i micro-batches',
    async (numMicrobatches) => {
      for (const momentum of [0.3, 'cumulative'] as const) {
        const plain = await statistics(undefined, { momentum });
        const offloaded = await statistics({ numMicrobatches, checkpointActivation }, { momentum });
        expect(offloaded.get('num_batches_tracked')).toEqual([3]);
        expectClose(offloaded, plain, 1e-6);
      }
    },
  );

  it('count each of their uses in a forward, as without micro-batches', async () => {
    const build = (norm: BatchNorm1d, device: Device) => {
      class Twice extends Module<[x: Tensor], Tensor> {
        readonly norm = this.child('norm', norm);
        async forward(x: Tensor): Promise<Tensor> {
          const [first, second] = [await this.norm.call(x), await this.norm.call(square(x))];
          expect(first.shape).toEqual(second.shape);
          return second;
        }
      }
      return [new Linear(device, { inFeatures: DIM, outFeatures: DIM }), new Twice(device)];
    };
    const plain = await statistics(undefined, { build });
    expect(plain.get('num_batches_tracked')).toEqual([6]);
    expectClose(
      await statistics({ numMicrobatches: 2, checkpointActivation }, { build }),
      plain,
      1e-6,
    );
  });

  it('stay as they are in evaluation', async () => {
    const options = { numMicrobatches: 2, checkpointActivation };
    expect((await statistics(options, {}, false)).get('num_batches_tracked')).toEqual([0]);
  });
});

it('a forward that fails in its second micro-batch leaves the running statistics, and nothing else', async () => {
  const device = new Device(createReferenceBackend(), { seed: 6 });
  const norm = new BatchNorm1d(device, { numFeatures: DIM });
  let left = Number.POSITIVE_INFINITY;
  class Fails extends Module<[x: Tensor], Tensor> {
    forward(x: Tensor): Tensor {
      if (--left < 0) {
        throw new Error('bad rows');
      }
      return x;
    }
  }
  const linear = new Linear(device, { inFeatures: DIM, outFeatures: DIM });
  const layers = [new Sequential(device, [linear, norm, new Fails(device)])];
  const model = new OffloadModel(layers, { numMicrobatches: 3 });
  const call = () =>
    device.scope(async () => {
      await model.call(device.tensor(new Float32Array(6 * DIM).fill(0.1), [6, DIM]));
    });
  await call();
  const before = { live: device.memory().live, mean: await norm.runningMean!.toArray() };
  left = 1;
  await expect(call()).rejects.toThrow('bad rows');
  expect(await norm.runningMean!.toArray()).toEqual(before.mean);
  expect(device.memory().live).toEqual(before.live);
  left = Number.POSITIVE_INFINITY;
  await call();
  expect([...(await norm.numBatchesTracked!.toArray())]).toEqual([2]);
});

it.each([true, false])(
  'micro-batches that wait for the next slice wait on the host, checkpointing %s',
  async (checkpointActivation) => {
    const device = new Device(createReferenceBackend(), { seed: 6 });
    const layers = Array.from(
      { length: 6 },
      () => new Linear(device, { inFeatures: 8, outFeatures: 8 }),
    );
    const model = new OffloadModel(layers, { numMicrobatches: 16, checkpointActivation });
    const batchBytes = 4 * 64 * 8;
    const input = device.tensor(new Float32Array(64 * 8).fill(0.1), [64, 8]);
    const live: number[] = [];
    const before = () => void live.push(device.memory().live.activation - batchBytes);
    layers[3]!.aroundForward({ before });
    await device.scope(async () => void (await model.call(input)));
    expect(live.length).toBe(16);
    // The caller's input is cut into parts of its own. Of later values each slice has one part or
    // two.
    expect(Math.max(...live)).toBeLessThanOrEqual((2 * batchBytes) / 16);
  },
);
