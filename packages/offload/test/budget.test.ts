// Slices are chosen for the device's budget, the pool never exceeds it, and the error of a budget
// that is too small says which one would do.

import { AdamW, checkpoint, Linear, Module, Sequential } from '@shardweave/nn';
import { OffloadBudgetError, OffloadConfigError, OffloadModel } from '@shardweave/offload';
import { createHostStore } from '@shardweave/shard-store';
import { openDiskStore } from '@shardweave/shard-store/node';
import { add, type Backend, Device, mean, square, type Tensor } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { begin, losses, type Run, trainStep } from './support/training.js';

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

/**
 * Trains a stack of layers for some steps. Returns the bytes that the pool held after each part of
 * them.
 */
async function trainStack(model: Sequential | OffloadModel, steps: number) {
  const { device } = model;
  const { pool } = device; // This is the real pool, since hooks run in dry runs too.
  const optimizer = new AdamW(model.parameters(), { lr: 1e-2 });
  const found: number[] = [];
  const reserved: number[] = [];
  for (const parameter of model.parameters()) {
    device.autograd.onGradientFinal(parameter, () => void reserved.push(pool.reservedBytes));
  }
  for (let step = 0; step < steps; step++) {
    const loss = await device.scope(async () => {
      const values = Float32Array.from({ length: 2 * DIM }, (_, i) => Math.sin(i + step));
      const output: Tensor = await model.call(device.tensor(values, [2, DIM]));
      reserved.push(pool.reservedBytes);
      const result = mean(square(output));
      device.beforeGradientOf(output, () => void reserved.push(pool.reservedBytes));
      await result.backward();
      return result.item();
    });
    found.push(loss);
    reserved.push(pool.reservedBytes);
    await optimizer.step();
    reserved.push(pool.reservedBytes);
    optimizer.zeroGrad();
  }
  return { losses: found, reserved };
}

/** Notes what the pool holds whenever a gradient of the model is final. */
function watchGradients({ device, model }: Run): number[] {
  const reserved: number[] = [];
  const { pool } = device; // This is the real pool, since hooks run in dry runs too.
  for (const parameter of model.parameters()) {
    device.autograd.onGradientFinal(parameter, () => void reserved.push(pool.reservedBytes));
  }
  return reserved;
}

describe('a model whose state is ten times the budget', () => {
  it.each(['host', 'disk'])('trains on the %s tier as it does without', async (tier) => {
    const plain = await trainStack(stack(new Device(backend, { seed: 1 })), 4);
    const store =
      tier === 'host' ? createHostStore() : await openDiskStore({ directory: await newFolder() });
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
    const reserved = watchGradients(run);
    await trainStep(run, 0, 2);
    const few = model.slices.length;
    await trainStep(run, 1, 8);
    const many = model.slices.length;
    expect(many).toBeGreaterThan(few);
    await trainStep(run, 2, 2);
    expect(model.slices.length).toBe(many);
    expect(reserved.length).toBeGreaterThan(3);
    expect(Math.max(...reserved, run.device.memory().reservedBytes)).toBeLessThanOrEqual(120_000);
  });

  it('a list of modules makes slices of several where they fit', async () => {
    const device = new Device(backend, { seed: 1 });
    const model = new OffloadModel(stack(device).layers(), { deviceBudgetBytes: 3e6 });
    expect(model.slices.length).toBe(LAYERS); // There is one slice for each layer, until a call.
    await device.noGrad(() =>
      device.scope(async () => void (await model.call(device.zeros([2, DIM])))),
    );
    expect(model.slices).toEqual([Array.from({ length: LAYERS }, (_, i) => String(i))]);
  });

  it('changes no loss', async () => {
    const plain = await losses(begin({ backend }), 3);
    const run = begin({ backend, offload: { deviceBudgetBytes: 150_000 } });
    const reserved = watchGradients(run);
    expect(await losses(run, 3)).toEqual(plain);
    expect(Math.max(...reserved, run.device.memory().reservedBytes)).toBeLessThanOrEqual(150_000);
  });
});

describe('a plan for a budget', () => {
  const budgeted = (deviceBudgetBytes: number) => {
    const run = begin({
      backend,
      offload: { deviceBudgetBytes, checkpointActivation: true },
      config: { n_positions: 64 },
    });
    const { device } = run;
    const model = run.model as OffloadModel;
    const step = (rows: number, length: number) =>
      device.scope(async () => {
        const ids = device.tensor(new Int32Array(rows * length), [rows, length]);
        await mean(square(await model.call(ids))).backward();
      });
    return { device, model, step };
  };

  it('holds for shapes: other rows are planned anew, and the first plan comes back', async () => {
    const { device, model, step } = budgeted(180_000);
    await step(32, 1);
    expect(model.slices.length).toBe(1);
    await step(16, 4);
    expect(model.slices.length).toBe(4);
    await step(32, 1);
    expect(model.slices.length).toBe(1);
    expect(device.memory().reservedBytes).toBeLessThanOrEqual(180_000);
  });

  it('is made anew where the device has less room than it had', async () => {
    const { device, model, step } = budgeted(200_000);
    await step(32, 1);
    expect(model.slices.length).toBe(1);
    const other = device.zeros([10_000]).keep();
    await step(32, 1);
    expect(model.slices.length).toBeGreaterThan(1);
    other.dispose();
    await step(32, 1);
    expect(model.slices.length).toBeGreaterThan(1); // The newest plan that fits stays.
  });

  it('is made in a backward too: checkpointing around the model', async () => {
    const { device, model, step } = budgeted(200_000);
    const plain = begin({ backend, config: { n_positions: 64 } });
    const gradients = async (target: Module) => {
      const ids = target.device.tensor(new Int32Array(8).fill(3), [2, 4]);
      const output = (await checkpoint(target).call(ids)) as Tensor;
      await mean(square(output)).backward();
    };
    await device.scope(() => gradients(model));
    await plain.device.scope(() => gradients(plain.model));
    const grad = plain.model.parameters()[0]!.grad!;
    const bytes = await model.flats[0]!.home.gradient.read();
    const expected = await grad.toBytes();
    expect(bytes!.subarray(0, expected.byteLength)).toEqual(expected);
    await step(2, 4);
    expect(device.memory().live.parameter).toBe(0);
  });

  it('a plan made in a backward forgets no gradient on its way: a refused gradient fails the backward', async () => {
    const device = new Device(backend, { seed: 1 });
    const store = createHostStore();
    const write = store.write.bind(store);
    let numGradients = 0;
    store.write = async (key, bytes) => {
      for (let turn = 0; turn < 10; turn++) {
        await new Promise((resolve) => setImmediate(resolve));
      }
      if (key.endsWith('/gradient') && numGradients++ === 0) {
        throw new Error('no room');
      }
      await write(key, bytes);
    };
    const layers = [0, 1, 2].map(() => new Linear(device, { inFeatures: DIM, outFeatures: DIM }));
    const model = new OffloadModel(layers, { store, deviceBudgetBytes: 1e6 });
    const step = () =>
      device.scope(async () => {
        const rows = (count: number) => device.tensor(new Float32Array(count * DIM), [count, DIM]);
        const wrapped = checkpoint(model);
        // Backward reaches the second call first, and the first call's shape has no plan of a
        // training step.
        const first = (await wrapped.call(rows(8))) as Tensor;
        const second = (await wrapped.call(rows(2))) as Tensor;
        await add(mean(square(first)), mean(square(second))).backward();
      });
    await expect(step()).rejects.toThrow('no room');
    model.zeroGrad();
    await step();
    expect(model.flats.every(({ home }) => home.hasGradient)).toBe(true);
    expect(model.hostMemory().stagingBytes).toBe(0);
  });

  it('a dry run that fails leaves nothing, and no plan', async () => {
    const device = new Device(backend);
    let isBad = true;
    class Bad extends Module<[x: Tensor], Tensor> {
      forward(x: Tensor): Tensor {
        if (isBad) {
          throw new Error('bad layer');
        }
        return square(x);
      }
    }
    const linear = () => new Linear(device, { inFeatures: DIM, outFeatures: DIM });
    const layers = [linear(), linear(), linear(), new Bad(device)];
    const model = new OffloadModel(layers, { deviceBudgetBytes: 100_000 });
    const step = () =>
      device.scope(async () => {
        const x = device.tensor(new Float32Array(2 * DIM).fill(0.1), [2, DIM]);
        await mean(await model.call(x)).backward();
      });
    await expect(step()).rejects.toThrow('bad layer');
    expect(device.memory().live.total).toBe(0);
    // These are the slices that were given, not those that were tried.
    expect(model.slices.length).toBe(4);
    isBad = false;
    await step();
    expect(device.memory().live.total).toBe(0);
    expect(device.memory().reservedBytes).toBeLessThanOrEqual(100_000);
  });

  it('a dry run that fails leaves the plans that were there, and their calls compute', async () => {
    const device = new Device(backend, { seed: 1 });
    const layers = [0, 1, 2].map(() => new Linear(device, { inFeatures: DIM, outFeatures: DIM }));
    const model = new OffloadModel(layers, { deviceBudgetBytes: 1e6 });
    const gradientsOf = async (width: number) => {
      model.zeroGrad();
      await device.scope(async () => {
        const x = device.tensor(new Float32Array(2 * width).fill(0.1), [2, width]);
        await mean(await model.call(x)).backward();
      });
      return Promise.all(model.flats.map(({ home }) => home.gradient.read()));
    };
    const before = await gradientsOf(DIM);
    expect(before).not.toContain(undefined);
    await expect(gradientsOf(DIM + 1)).rejects.toThrow('64');
    expect(await gradientsOf(DIM)).toEqual(before);
  });

  it('the smallest budget of several models on a device holds, and ends with its model', async () => {
    const device = new Device(backend);
    const open = async (deviceBudgetBytes: number) => {
      const model = new OffloadModel(stack(device), { deviceBudgetBytes });
      await model.moveToStore();
      return model;
    };
    const [a, b, c] = [await open(3e6), await open(1e6), await open(2e6)];
    expect(device.pool.limitBytes).toBe(1e6);
    b.dispose();
    expect(device.pool.limitBytes).toBe(2e6);
    a.dispose();
    c.dispose();
    expect(device.pool.limitBytes).toBe(Number.POSITIVE_INFINITY);
  });
});

describe('too small a budget', () => {
  it('a slice that does not fit is an error with the smallest that works and the layer that needs it', async () => {
    const first = begin({ backend, offload: { deviceBudgetBytes: 20_000 } });
    const error = await trainStep(first, 0).catch((reason: unknown) => reason);
    expect(error).toBeInstanceOf(OffloadBudgetError);
    const { requiredBytes, moduleName, message } = error as OffloadBudgetError;
    expect(message).toContain(`'${moduleName}'`);
    expect(message).toContain(String(requiredBytes));
    expect(first.device.memory().live.activation).toBe(0);
    // Dry runs park nothing on the host.
    expect((first.model as OffloadModel).hostMemory().numBuffersMade).toBe(0);

    const second = begin({ backend, offload: { deviceBudgetBytes: requiredBytes } });
    await trainStep(second, 0);
    const below = begin({ backend, offload: { deviceBudgetBytes: requiredBytes - 1 } });
    await expect(trainStep(below, 0)).rejects.toThrow(OffloadBudgetError);
  });

  it('counts what the step of the largest layer takes, with the state of Adam', async () => {
    const device = new Device(backend);
    const layerBytes = 4 * (DIM * DIM + 128);
    const model = new OffloadModel(stack(device), {
      deviceBudgetBytes: 3.5 * layerBytes,
      checkpointActivation: true,
    });
    const error = await trainStack(model, 1).catch((reason: unknown) => reason);
    expect(error).toBeInstanceOf(OffloadBudgetError);
    expect((error as OffloadBudgetError).requiredBytes).toBeGreaterThanOrEqual(4 * layerBytes);
    // An evaluation steps nothing, and needs no room for it.
    await device.noGrad(() =>
      device.scope(async () => void (await model.call(device.zeros([2, DIM])))),
    );
  });

  it('a step has room wherever a backward has: it takes a layer in parts, and changes no bit', async () => {
    // A step takes 90,432 elements of each tensor. All four tensors in one step would take twice
    // what the backward of a layer does.
    const train = async (deviceBudgetBytes: number | undefined) => {
      const device = new Device(backend, { seed: 1 });
      const layer = () => new Linear(device, { inFeatures: 300, outFeatures: 300 });
      const layers = [layer(), layer()];
      const model =
        deviceBudgetBytes === undefined
          ? new Sequential(device, layers)
          : new OffloadModel(layers, { deviceBudgetBytes, checkpointActivation: true });
      const groups = [
        { params: model.parameters().slice(0, 3) },
        // The border of this group lies in the last part.
        { params: model.parameters().slice(3), lr: 1e-3 },
      ];
      const optimizer = new AdamW(groups, { lr: 1e-2 });
      const found: number[] = [];
      let numKernels = 0;
      for (let step = 0; step < 3; step++) {
        await device.scope(async () => {
          const x = device.tensor(new Float32Array(300).fill(0.01), [1, 300]);
          const loss = mean(square((await model.call(x)) as Tensor));
          await loss.backward();
          found.push(await loss.item());
        });
        const { run } = device.backend;
        device.backend.run = (name, call) => {
          numKernels += name === 'adam' ? 1 : 0;
          run.call(device.backend, name, call);
        };
        await optimizer.step().finally(() => {
          device.backend.run = run;
        });
        optimizer.zeroGrad();
      }
      return { losses: found, numKernels, reservedBytes: device.memory().reservedBytes };
    };
    const error = await train(1000).catch((reason: unknown) => reason);
    // The 8192 bytes are for the loss and its gradient.
    const budget = (error as OffloadBudgetError).requiredBytes + 8192;
    const plain = await train(undefined);
    const { losses: found, numKernels, reservedBytes } = await train(budget);
    expect(found).toEqual(plain.losses);
    expect(reservedBytes).toBeLessThanOrEqual(budget);
    expect(numKernels).toBe(3 * 2 * 3); // The factors are steps, layers, and parts of 128 KiB.
  });

  it('a budget too small for training may be enough for evaluation', async () => {
    const run = begin({ backend, offload: { deviceBudgetBytes: 80_000 } });
    const { device, model } = run;
    const ids = Int32Array.from({ length: 64 }, (_, i) => i % 37);
    const evaluate = async () => {
      const call = () => model.call(device.tensor(ids, [8, 8]));
      const output: Tensor = await device.noGrad(() => device.scope(call));
      output.dispose(); // Otherwise less room is left, and a new plan is made for it.
    };
    await evaluate();
    await expect(trainStep(run, 0, 8)).rejects.toThrow(OffloadBudgetError);
    await evaluate();
  });

  it('refuses numSlices beside it', () => {
    const device = new Device(backend);
    const options = { numSlices: 2, deviceBudgetBytes: 1e6 };
    expect(() => new OffloadModel(stack(device), options)).toThrow(OffloadConfigError);
  });
});
