// Sharding runs inside offload: each slice's shards rest in a store, and are gathered while the
// slice runs. Beside it, a sharded model is saved with an offloaded one.

import { piecesIn } from '@shardweave/checkpoint';
import { createMemoryGroup } from '@shardweave/collectives';
import { FsdpConfigError, FullyShardedDataParallel } from '@shardweave/fsdp';
import {
  Linear,
  loadCheckpoint,
  type Module,
  Sequential,
  Sgd,
  saveCheckpoint,
  stateDict,
} from '@shardweave/nn';
import { OffloadConfigError, OffloadModel } from '@shardweave/offload';
import { createHostStore } from '@shardweave/shard-store';
import { Device, mean, square } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { expect, it } from 'vitest';

const DIM = 6;
const ROWS = 4;

const layers = (device: Device) =>
  Array.from({ length: 4 }, () => new Linear(device, { inFeatures: DIM, outFeatures: DIM }));

/** Returns the losses of three steps over rows [first, first + count). */
async function train(model: Module, first: number, count: number): Promise<number[]> {
  const { device } = model;
  const optimizer = new Sgd(model.parameters(), { lr: 0.3, momentum: 0.9 });
  const losses: number[] = [];
  for (let step = 0; step < 3; step++) {
    const values = Float32Array.from({ length: count * DIM }, (_, i) =>
      Math.sin(first * DIM + i + step),
    );
    const loss = await device.scope(async () => {
      const result = mean(square(await model.call(device.tensor(values, [count, DIM]))));
      await result.backward();
      return result.item();
    });
    losses.push(loss);
    await optimizer.step();
    optimizer.zeroGrad();
  }
  return losses;
}

it.each([true, false])('two ranks equal one process, checkpointing %s', async (isOn) => {
  const backend = createReferenceBackend();
  const plainDevice = new Device(backend, { seed: 5 });
  const plain = await train(new Sequential(plainDevice, layers(plainDevice)), 0, ROWS);
  const perRank = await Promise.all(
    createMemoryGroup(2).map(async (processGroup, rank) => {
      const device = new Device(backend, { seed: 5 });
      const store = createHostStore();
      const sharded = layers(device).map(
        (layer, i) =>
          new FullyShardedDataParallel(layer, {
            processGroup,
            name: `layer ${i}`,
            offloadConfig: { store },
          }),
      );
      const model = new OffloadModel(new Sequential(device, sharded), {
        numSlices: 2,
        checkpointActivation: isOn,
      });
      expect(model.slices).toEqual([
        ['0', '1'],
        ['2', '3'],
      ]);
      const losses = await train(model, (rank * ROWS) / 2, ROWS / 2);
      expect(device.memory().live).toMatchObject({ parameter: 0, gathered: 0, gradient: 0 });
      await expect(stateDict(model)).rejects.toThrow(/which is sharded/);
      await processGroup.close();
      return losses;
    }),
  );
  plain.forEach((loss, step) => {
    const found = (perRank[0]![step]! + perRank[1]![step]!) / 2;
    expect(Math.abs(found - loss), `step ${step}`).toBeLessThanOrEqual(2e-6);
  });
});

it('an offloaded model before a sharded one is saved by all ranks, once', async () => {
  const store = piecesIn(createHostStore());
  const backend = createReferenceBackend();
  const states = await Promise.all(
    createMemoryGroup(2).map(async (processGroup) => {
      const device = new Device(backend, { seed: 5 });
      const [sharded, plain, offloaded] = layers(device);
      const fsdp = new FullyShardedDataParallel(sharded!, { processGroup });
      const models = [
        new OffloadModel([offloaded!]),
        new Sequential(device, [fsdp, plain!]),
      ] as const;
      const state = await stateDict(models);
      await saveCheckpoint(models, store);
      await processGroup.close();
      return state;
    }),
  );
  const device = new Device(backend);
  const [first, second, third] = layers(device);
  const bare = [new Sequential(device, [first!]), new Sequential(device, [second!, third!])];
  await loadCheckpoint(bare, store);
  expect(await stateDict(bare)).toEqual(states[0]);
});

it('refuses shards that stay on the device, and a budget with sharding inside', () => {
  const device = new Device(createReferenceBackend());
  const [processGroup] = createMemoryGroup(1);
  const wrap = (options: object) =>
    layers(device).map((layer, i) => {
      const named = { processGroup: processGroup!, name: `layer ${i}`, ...options };
      return new FullyShardedDataParallel(layer, named);
    });
  expect(() => new OffloadModel(wrap({}))).toThrow(/offloadConfig/);
  const sharded = wrap({ offloadConfig: { store: createHostStore() } });
  expect(() => new OffloadModel(sharded, { deviceBudgetBytes: 1e6 })).toThrow(OffloadConfigError);
});

it('an OffloadModel inside a flat parameter is refused', () => {
  const device = new Device(createReferenceBackend());
  const [processGroup] = createMemoryGroup(1);
  const model = new OffloadModel(new Sequential(device, layers(device)));
  expect(() => new FullyShardedDataParallel(model, { processGroup: processGroup! })).toThrow(
    FsdpConfigError,
  );
});
