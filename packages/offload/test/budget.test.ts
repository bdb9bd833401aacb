// The device's budget: slices are chosen for it, the pool never passes it, and one that is too small is
// an error that says what would do.

import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { AdamW, Linear, Sequential } from '@shardweave/nn';
import { OffloadBudgetError, OffloadConfigError, OffloadModel } from '@shardweave/offload';
import { createHostStore } from '@shardweave/shard-store';
import { openDiskStore } from '@shardweave/shard-store/node';
import { type Backend, Device, mean, square } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { begin, losses, trainStep } from './training.js';

const LAYERS = 24;
const DIM = 64;

let backend: Backend;
beforeAll(async () => {
  backend = await createCpuBackend({ threads: 1 });
});
afterAll(() => backend.dispose());

function stack(device: Device): Sequential {
  return new Sequential(
    device,
    Array.from({ length: LAYERS }, () => new Linear(device, { inFeatures: DIM, outFeatures: DIM })),
  );
}

/** Steps of a stack of layers; the most bytes that the pool has held after each. */
async function trainStack(model: Sequential | OffloadModel, steps: number) {
  const { device } = model;
  const optimizer = new AdamW(model.parameters(), { lr: 1e-2 });
  const found: number[] = [];
  const reserved: number[] = [];
  for (let step = 0; step < steps; step++) {
    const loss = await device.scope(async () => {
      const values = Float32Array.from({ length: 2 * DIM }, (_, i) => Math.sin(i + step));
      const result = mean(square(await model.call(device.tensor(values, [2, DIM]))));
      await result.backward();
      return result.item();
    });
    found.push(loss);
    reserved.push(device.memory().reservedBytes);
    await optimizer.step();
    reserved.push(device.memory().reservedBytes);
    optimizer.zeroGrad();
  }
  return { losses: found, reserved };
}

describe('a model whose state is ten times the budget', () => {
  it.each(['host', 'disk'])('trains on the %s tier as it does without', async (tier) => {
    const plain = await trainStack(stack(new Device(backend, { seed: 1 })), 4);
    const directory = await mkdtemp(join(tmpdir(), 'offload-'));
    const store = tier === 'host' ? createHostStore() : await openDiskStore({ directory });
    const device = new Device(backend, { seed: 1 });
    const stateBytes = 16 * LAYERS * (DIM * DIM + DIM);
    const budget = Math.floor(stateBytes / 10);
    const model = new OffloadModel(stack(device), {
      store,
      deviceBudgetBytes: budget,
      checkpointActivation: true,
    });
    const offloaded = await trainStack(model, 4);
    expect(offloaded.losses).toEqual(plain.losses);
    expect(Math.max(...offloaded.reserved)).toBeLessThanOrEqual(budget);
    expect(Math.max(...offloaded.reserved)).toBeGreaterThan(0.6 * budget);
    expect(Math.max(...plain.reserved)).toBeGreaterThan(stateBytes);
    await store.close();
    await rm(directory, { recursive: true });
  });
});

describe('the choice of slices', () => {
  it('takes the fewest that fit, and as many as it needs', async () => {
    const numSlices = async (deviceBudgetBytes: number) => {
      const device = new Device(backend, { seed: 1 });
      const model = new OffloadModel(stack(device), { deviceBudgetBytes });
      await trainStack(model, 1);
      return model.slices.length;
    };
    const layerBytes = 4 * (DIM * DIM + 128);
    expect(await numSlices(100 * layerBytes)).toBe(1);
    const some = await numSlices(20 * layerBytes);
    expect(some).toBeGreaterThan(1);
    expect(await numSlices(8 * layerBytes)).toBeGreaterThan(some);
  });

  it('is made anew for larger inputs, and holds for smaller ones', async () => {
    const run = begin({ backend, offload: { deviceBudgetBytes: 120_000 } });
    const model = run.model as OffloadModel;
    await trainStep(run, 0, 2);
    const few = model.slices.length;
    await trainStep(run, 1, 8);
    const many = model.slices.length;
    expect(many).toBeGreaterThan(few);
    await trainStep(run, 2, 2);
    expect(model.slices.length).toBe(many);
    expect(run.device.memory().reservedBytes).toBeLessThanOrEqual(120_000);
  });

  it('changes no loss', async () => {
    const plain = await losses(begin({ backend }), 3);
    const run = begin({ backend, offload: { deviceBudgetBytes: 150_000 } });
    expect(await losses(run, 3)).toEqual(plain);
  });
});

describe('too small a budget', () => {
  it('is an error with the smallest that works and the layer that needs it', async () => {
    const first = begin({ backend, offload: { deviceBudgetBytes: 20_000 } });
    const error = await trainStep(first, 0).catch((reason: unknown) => reason);
    expect(error).toBeInstanceOf(OffloadBudgetError);
    const { requiredBytes, moduleName, message } = error as OffloadBudgetError;
    expect(message).toContain(`'${moduleName}'`);
    expect(message).toContain(String(requiredBytes));
    expect(first.device.memory().live.activation).toBe(0);

    const second = begin({ backend, offload: { deviceBudgetBytes: requiredBytes } });
    await (second.model as OffloadModel).call(
      second.device.tensor(
        Int32Array.from({ length: 32 }, (_, i) => i % 37),
        [4, 8],
      ),
    );
    const below = begin({ backend, offload: { deviceBudgetBytes: requiredBytes - 1 } });
    await expect(trainStep(below, 0)).rejects.toThrow(OffloadBudgetError);
  });

  it('refuses numSlices beside it', () => {
    const device = new Device(backend);
    const options = { numSlices: 2, deviceBudgetBytes: 1e6 };
    expect(() => new OffloadModel(stack(device), options)).toThrow(OffloadConfigError);
  });
});
