// A model may be too large for one device. Its parameters are made and sharded part by part, and
// never exist whole anywhere.

import { FullyShardedDataParallel } from '@shardweave/fsdp';
import { Gpt2, Module, Sgd, stateDict } from '@shardweave/nn';
import { deferredParameter, hostRecipe, materialize } from '@shardweave/nn/flat';
import { Device, StateError, type Tensor } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';
import { forwardBackward, onRanks, type Rank, TINY } from '../../../tooling/test-kit/index.ts';
import { shardedGpt2 } from './support/sharding.js';

describe.each([1, 2, 3])('deferred initial values over %i ranks', (worldSize) => {
  it.each([true, false])('are those of a model made at once (from rank 0: %s)', async (sync) => {
    const device = new Device(createReferenceBackend());
    const bare = await stateDict(new Gpt2(device, TINY, { seed: 3 }));
    await onRanks(worldSize, async (rank) => {
      const fsdp = { syncModuleStates: sync };
      const { model } = shardedGpt2(rank, { fsdp, deferInit: true });
      expect(await stateDict(model)).toEqual(bare);
    });
  });

  it('never take more of a device than its shards and a part, and train as values made at once', () =>
    onRanks(worldSize, async (rank) => {
      const { model } = shardedGpt2(rank, { deferInit: true });
      expect(rank.device.memory().live.total).toBe(0);
      await model.initialize();
      const sizes = model
        .instances()
        .flatMap(({ units }) => units.map((unit) => unit.flat.storage.byteLength));
      const shards = sizes.reduce((sum, bytes) => sum + bytes, 0);
      // Rank 0 draws a part of another rank's shard beside its own, and reads it back.
      const part = rank.rank === 0 && worldSize > 1 ? Math.max(...sizes) : 0;
      const { peak } = rank.device.memory();
      expect(peak.parameter).toBe(shards);
      expect(peak.staging).toBeLessThanOrEqual(part);
      expect(peak.total).toBeLessThanOrEqual(shards + part);
      const losses: number[] = [];
      for (const { device, made } of [
        { device: rank.device, made: model },
        { device: new Device(rank.device.backend, { seed: 7 }), made: undefined },
      ]) {
        const trained = made ?? shardedGpt2({ ...rank, device }).model;
        const optimizer = new Sgd(trained.parameters(), { lr: 0.1 });
        for (let step = 0; step < 2; step++) {
          const rows = { batch: worldSize, first: rank.rank, count: 1 };
          losses.push(await forwardBackward(device, trained, step, rows));
          await optimizer.step();
          optimizer.zeroGrad();
        }
      }
      expect(losses.slice(0, 2)).toEqual(losses.slice(2));
    }));
});

/** This module has one parameter, whose draws are counted. */
class Counted extends Module<[x: Tensor], Tensor> {
  readonly draws: { start: number; length: number }[] = [];

  constructor(device: Device, size: number) {
    super(device);
    const recipe = hostRecipe((values, start) => {
      this.draws.push({ start, length: values.length });
      for (let i = 0; i < values.length; i++) {
        values[i] = start + i;
      }
    });
    this.parameter('weight', deferredParameter(device, [size], recipe));
  }

  forward(x: Tensor): Tensor {
    return x;
  }
}

describe('which rank draws which values', () => {
  const SIZE = 2 ** 21 + 300_001; // This makes two shards of more than one part of 2^20 elements.

  async function drawn(syncModuleStates: boolean) {
    return onRanks(2, async ({ device, group, rank }) => {
      const module = new Counted(device, SIZE);
      const model = new FullyShardedDataParallel(module, { processGroup: group, syncModuleStates });
      await model.initialize();
      const { shardLength } = model.units[0]!.layout;
      const values = new Float32Array((await model.units[0]!.values.read()).buffer);
      const first = rank * shardLength;
      const owned = Math.min(shardLength, SIZE - first);
      expect(values.subarray(0, owned).every((value, i) => value === Math.fround(first + i))).toBe(
        true,
      );
      expect(values.subarray(owned).every((value) => value === 0)).toBe(true);
      const { staging } = device.memory().peak;
      return { draws: module.draws, first, owned, staging, stats: group.stats() };
    });
  }

  it('only rank 0 draws, each element once, at most 4 MiB at a time', async () => {
    const [first, second] = await drawn(true);
    expect(second!.draws).toEqual([]);
    expect([first!.staging, second!.staging]).toEqual([4 * 2 ** 20, 0]);
    expect(Math.max(...first!.draws.map(({ length }) => length))).toBe(2 ** 20);
    expect(first!.draws.reduce((sum, { length }) => sum + length, 0)).toBe(SIZE);
    // The messages are the other rank's shard, and digests of the options and of the numeric class.
    expect(first!.stats).toMatchObject({ sends: 2, broadcasts: 0 });
    expect(first!.stats.bytesSent).toBe(Math.ceil(SIZE / 2 / 128) * 128 * 4 + 16);
  });

  it('no part before its receiver has asked for it, however late that is', async () => {
    let numDrawn = () => 0;
    await onRanks(2, async ({ device, group, rank }) => {
      const module = new Counted(device, 6 * 2 ** 20); // This makes two shards of three parts.
      if (rank === 0) {
        numDrawn = () => module.draws.length;
      } else {
        const recv = group.recv.bind(group);
        let numAsked = 0;
        group.recv = async (...args) => {
          for (let turn = 0; turn < 20; turn++) {
            await new Promise(setImmediate); // These turns let rank 0 go as far as it can.
          }
          // Rank 0 draws its own parts between those of this rank, and one part is ready before it
          // is asked for.
          numAsked++;
          expect(numDrawn()).toBeLessThanOrEqual(2 * numAsked + 1);
          return recv(...args);
        };
      }
      await new FullyShardedDataParallel(module, { processGroup: group }).initialize();
    });
    expect(numDrawn()).toBe(6);
  });

  it('each rank its own part without syncModuleStates, and nothing travels', async () => {
    for (const { draws, first, owned, stats } of await drawn(false)) {
      expect(draws[0]!.start).toBe(first);
      expect(draws.reduce((sum, { length }) => sum + length, 0)).toBe(owned);
      expect(stats).toMatchObject({ sends: 0, recvs: 0, broadcasts: 0 });
    }
  });

  it('replicas get theirs from the first', () =>
    onRanks(4, async ({ device, group, rank }) => {
      const processGroup = await group.split(Math.floor(rank / 2));
      const replicateGroup = await group.split(rank % 2);
      const module = new Counted(device, 1000);
      const model = new FullyShardedDataParallel(module, { processGroup, replicateGroup });
      const [entry] = (await stateDict(model)).values();
      const values = new Float32Array(entry!.data.slice().buffer);
      expect([...values]).toEqual(Array.from({ length: 1000 }, (_, i) => i));
      expect(module.draws.length > 0).toBe(rank === 0);
    }));
});

it('padding after a parameter is zeros, in memory that others have used', async () => {
  const backend = createReferenceBackend(); // Its memory starts as NaN.
  const read = ({ device, group }: Rank) => {
    const model = new FullyShardedDataParallel(new Counted(device, 10), { processGroup: group });
    return model.initialize().then(() => model.units[0]!.values.read());
  };
  const [bytes] = await onRanks(1, read, { backend });
  expect([...new Float32Array(bytes!.buffer)]).toEqual([
    ...Array.from({ length: 10 }, (_, i) => i),
    ...Array(118).fill(0),
  ]);
});

it('a plain module says what to do, and a wrapped one cannot be materialized', () =>
  onRanks(1, async ({ device, group }) => {
    const module = new Counted(device, 10);
    const [weight] = module.parameters();
    await expect(weight!.toArray()).rejects.toThrow(StateError);
    await expect(weight!.toArray()).rejects.toThrow('materialize(module)');
    const model = new FullyShardedDataParallel(module, { processGroup: group });
    materialize(model);
    expect(module.draws).toEqual([]);
    await model.initialize();
    expect(module.draws).toHaveLength(1);
  }));
