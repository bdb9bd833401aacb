// Sharding runs inside offload: each slice's shards rest in a store, and are gathered while the
// slice runs. Beside it, a sharded model is saved with an offloaded one.

import { piecesIn } from '@shardweave/checkpoint';
import { createMemoryGroup } from '@shardweave/collectives';
import { FsdpConfigError, FullyShardedDataParallel } from '@shardweave/fsdp';
import {
  loadCheckpoint,
  type Module,
  Sequential,
  Sgd,
  saveCheckpoint,
  stateDict,
} from '@shardweave/nn';
import { OffloadConfigError, OffloadModel } from '@shardweave/offload';
import { createHostStore } from '@shardweave/shard-store';
import { Device } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { expect, it } from 'vitest';
import { layer, type Rows, stepped, trainOnce } from '../../../tooling/test-kit/index.ts';

const ROWS = 4;

const layers = (device: Device) => Array.from({ length: 4 }, () => layer(device));

/** Returns the losses of three steps over these rows. */
function train(model: Module, rows: Rows): Promise<number[]> {
  const optimizer = new Sgd(model.parameters(), { lr: 0.3, momentum: 0.9 });
  return stepped(optimizer, [0, 1, 2], (step) => trainOnce(model, rows, step));
}

it.each([true, false])('two ranks equal one process, checkpointing %s', async (isOn) => {
  const backend = createReferenceBackend();
  const plainDevice = new Device(backend, { seed: 5 });
  const bare = new Sequential(plainDevice, layers(plainDevice));
  const plain = await train(bare, { first: 0, count: ROWS });
  const perRank = await Promise.all(
    createMemoryGroup(2).map(async (processGroup, rank) => {
      const device = new Device(backend, { seed: 5 });
      const store = createHostStore();
      const sharded = layers(device).map(
        (bare, i) =>
          new FullyShardedDataParallel(bare, {
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
      const losses = await train(model, { first: (rank * ROWS) / 2, count: ROWS / 2 });
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
    layers(device).map((bare, i) => {
      const named = { processGroup: processGroup!, name: `layer ${i}`, ...options };
      return new FullyShardedDataParallel(bare, named);
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
