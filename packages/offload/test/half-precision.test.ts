// Computation is in 16 bits from f32 masters, with the loss scaler, and gradients are clipped by a
// streamed norm.

import {
  GradScaler,
  gradNorm,
  Linear,
  Module,
  Sequential,
  Sgd,
  scaleGradients,
  stateDict,
} from '@shardweave/nn';
import { OffloadModel, type OffloadOptions } from '@shardweave/offload';
import {
  type Backend,
  cast,
  crossEntropy,
  Device,
  mean,
  mul,
  square,
  type Tensor,
} from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { begin, losses, type Run, tokens } from './support/training.js';

// The tolerance is a unit in the last place of logits around 0.1, summed over a few layers. Losses
// are around 3.6.
const TOLERANCE = { f16: 5e-4, bf16: 4e-3 } as const;
const ROWS = 4;

let backend: Backend;
beforeAll(async () => {
  backend = await createCpuBackend({ threads: 1 });
});
afterAll(() => backend.dispose());

const makeOptimizer = (model: Module) => new Sgd(model.parameters(), { lr: 0.1, momentum: 0.9 });
const beginRun = (offload?: OffloadOptions) =>
  begin({ backend, makeOptimizer, ...(offload === undefined ? {} : { offload }) });

/**
 * Takes a step with loss scaling and gradients clipped to a norm of 1. Returns the loss, and
 * whether it stepped.
 */
async function scaledStep({ device, model, optimizer }: Run, scaler: GradScaler, step: number) {
  return device.scope(async () => {
    device.random.begin({ step, rowOffset: 0 });
    const { ids, targets } = tokens(step, ROWS);
    const logits = cast(await model.call(device.tensor(ids, [ROWS, 8])), 'f32');
    const loss = crossEntropy(logits, device.tensor(targets, [ROWS, 8]));
    await scaler.scale(loss).backward();
    const scaled = await gradNorm(model.parameters());
    const found = !Number.isFinite(scaled);
    if (!found) {
      const norm = scaled / scaler.factor;
      const factor = device.tensor([1 / scaler.factor / Math.max(1, norm)]);
      await scaleGradients(model.parameters(), factor);
      await optimizer.step();
    }
    scaler.update(found);
    optimizer.zeroGrad();
    return { loss: await loss.item(), found };
  });
}

describe.each(['f16', 'bf16'] as const)('in %s', (computeDType) => {
  it.each([1, 3])('losses are near those in f32, %i micro-batches', async (numMicrobatches) => {
    const wide = await losses(beginRun(), 8);
    for (const checkpointActivation of [true, false]) {
      const run = beginRun({ computeDType, checkpointActivation, numMicrobatches });
      const narrow = await losses(run, 8);
      expect(narrow).not.toEqual(wide);
      narrow.forEach((loss, step) => {
        expect(Math.abs(loss - wide[step]!), `step ${step}`).toBeLessThan(TOLERANCE[computeDType]);
      });
    }
  });

  it('steps clipped under a loss scaler are near those in f32', async () => {
    const [wide, narrow] = [beginRun({}), beginRun({ computeDType })];
    const scalers = [wide, narrow].map(({ model }) => new GradScaler(model, { initScale: 1024 }));
    for (let step = 0; step < 6; step++) {
      const expected = await scaledStep(wide, scalers[0]!, step);
      const actual = await scaledStep(narrow, scalers[1]!, step);
      expect(actual.found).toBe(false);
      expect(Math.abs(actual.loss - expected.loss)).toBeLessThan(TOLERANCE[computeDType]);
    }
  });

  it('masters are f32: steps too small for 16 bits add up', async () => {
    const run = beginRun({ computeDType });
    const model = run.model as OffloadModel;
    const values = async () => {
      const state = await stateDict(model);
      return new Float32Array([...state.values()][0]!.data.slice().buffer);
    };
    const before = await values();
    for (const group of run.optimizer.groups) {
      Object.assign(group, { lr: 1e-6, momentum: 0 });
    }
    await losses(run, 2);
    const after = await values();
    expect(after.some((value, i) => value !== before[i])).toBe(true);
    const change = Math.max(...after.map((value, i) => Math.abs(value - before[i]!)));
    expect(change).toBeLessThan(1e-6);
  });
});

describe.each(['f16', 'bf16'] as const)('beside the plain model in %s', (dtype) => {
  // 16 bits can hold these masters, so that the plain model's rounding of them loses nothing.
  const build = (device: Device) => {
    const model = new Sequential(
      device,
      [0, 1, 2].map(() => new Linear(device, { inFeatures: 8, outFeatures: 8 })),
    );
    return model.to(dtype).to('f32');
  };
  const run = async (options: OffloadOptions | undefined) => {
    const device = new Device(backend, { seed: 9 });
    const bare = build(device);
    const model: Module = options === undefined ? bare.to(dtype) : new OffloadModel(bare, options);
    const optimizer = new Sgd(model.parameters(), { lr: 0.5 });
    const found: number[] = [];
    for (let step = 0; step < 2; step++) {
      await device.scope(async () => {
        const data = Float32Array.from({ length: 32 }, (_, i) => Math.sin(i + 0.1));
        // The input is f32: the offloaded model casts it, and the plain one gets it in its own
        // dtype.
        const x = device.tensor(data, [4, 8]);
        const input = options === undefined ? cast(x, dtype) : x;
        const loss = mean(square(cast((await model.call(input)) as Tensor, 'f32')));
        await loss.backward();
        found.push(await loss.item());
      });
      await optimizer.step();
      optimizer.zeroGrad();
    }
    return found;
  };

  it.each([true, false])('two losses are equal bit for bit, checkpointing %s', async (isOn) => {
    const options = { computeDType: dtype, checkpointActivation: isOn, numSlices: 3 };
    expect(await run(options)).toEqual(await run(undefined));
  });
});

it('an overflow skips the step and halves the factor', async () => {
  const run = beginRun({ computeDType: 'f16' });
  const state = await stateDict(run.model as OffloadModel);
  const scaler = new GradScaler(run.model, { initScale: 2 ** 30 });
  expect((await scaledStep(run, scaler, 0)).found).toBe(true);
  expect(scaler.factor).toBe(2 ** 29);
  expect(await stateDict(run.model as OffloadModel)).toEqual(state);
});

it('100 steps hold the device and the host flat, and dispose leaves nothing', async () => {
  const run = beginRun({ computeDType: 'f16', checkpointActivation: true });
  const model = run.model as OffloadModel;
  const scaler = new GradScaler(model, { initScale: 1024 });
  const held = () => {
    const { numBuffersMade, stagingBytes, parkedBytes } = model.hostMemory();
    return { device: run.device.memory(), host: { stagingBytes, parkedBytes }, numBuffersMade };
  };
  for (let step = 0; step < 3; step++) {
    await scaledStep(run, scaler, step);
  }
  const before = held();
  for (let step = 3; step < 100; step++) {
    await scaledStep(run, scaler, step);
  }
  const { numBuffersMade, ...after } = held();
  expect(after).toEqual({ device: before.device, host: { stagingBytes: 0, parkedBytes: 0 } });
  // The bound is below one for each step; timing decides how many buffers are needed at once.
  expect(numBuffersMade - before.numBuffersMade).toBeLessThan(5);
  run.optimizer.dispose();
  run.model.dispose();
  expect(run.device.memory().live.total).toBe(0);
});

it('an input that was cast is kept for the last layer that gets it, and then freed', async () => {
  class Scale extends Module<[x: Tensor, factor: Tensor], Tensor> {
    forward(x: Tensor, factor: Tensor): Tensor {
      return mul(x, factor);
    }
  }
  class Scaled extends Sequential<[x: Tensor, factor: Tensor]> {
    override argumentsOf(index: number, previous: unknown, [x, factor]: [Tensor, Tensor]) {
      return index === 0 ? [x] : index === 2 ? [previous, factor] : [previous];
    }
  }
  const trained = async (numSlices: number) => {
    const device = new Device(backend, { seed: 3 });
    const layer = () => new Linear(device, { inFeatures: 4, outFeatures: 4 });
    const bare = new Scaled(device, [layer(), layer(), new Scale(device), layer()]);
    const model = new OffloadModel(bare, { computeDType: 'bf16', numSlices });
    const values = Float32Array.from({ length: 12 }, (_, i) => Math.sin(i));
    await device.scope(async () => {
      const [x, factor] = [device.tensor(values, [3, 4]), device.tensor(values, [3, 4])];
      const output = await model.call(x, factor);
      // These are both inputs as given, and the output.
      expect(device.memory().live.activation).toBe(2 * 48 + 24);
      await mean(square(output)).backward();
    });
    const optimizer = new Sgd(model.parameters(), { lr: 0.5 });
    await optimizer.step();
    return stateDict(model);
  };
  expect(await trained(4)).toEqual(await trained(1));
});
