// Tests of calls and of stores share a few linear layers on a reference device, and steps over
// them.

import { AdamW, Linear, type Module, Sequential, Sgd } from '@shardweave/nn';
import { OffloadModel, type OffloadOptions } from '@shardweave/offload';
import { Device, mean, square, type Tensor } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { expect } from 'vitest';
import { expectClose, weightsOf } from '../../../../tooling/test-kit/index.ts';

export const DIM = 5;

export const newDevice = () => new Device(createReferenceBackend(), { seed: 11 });
export const linear = (device: Device, inFeatures = DIM, outFeatures = DIM) =>
  new Linear(device, { inFeatures, outFeatures });
export const linears = (device: Device, count: number) =>
  Array.from({ length: count }, () => linear(device));

export function rows(device: Device, count = 4, width = DIM): Tensor {
  const values = Float32Array.from({ length: count * width }, (_, i) => Math.sin(i + 1));
  return device.tensor(values, [count, width], { requiresGrad: true });
}

export type Body = (model: Module, x: Tensor) => Promise<void>;

export const squared: Body = async (model, x) => mean(square(await model.call(x))).backward();

/** The ways on which a call goes: recorded or run again in backward, whole or in parts. */
export const PATHS: readonly OffloadOptions[] = [
  { checkpointActivation: true },
  { checkpointActivation: false },
  { checkpointActivation: true, numMicrobatches: 3 },
  { checkpointActivation: false, numMicrobatches: 3 },
];

export type Build = (device: Device) => Sequential | Module[];

/**
 * Returns the weights after two steps, and the gradient of the input. The model is offloaded where
 * there are options.
 */
export async function outcome(build: Build, body: Body, options?: OffloadOptions, count = 4) {
  const device = newDevice();
  const built = build(device);
  const bare = Array.isArray(built) ? new Sequential(device, built) : built;
  const model: Module = options === undefined ? bare : new OffloadModel(bare, options);
  const x = rows(device, count);
  const optimizer = new Sgd(model.parameters(), { lr: 0.5 });
  for (let step = 0; step < 2; step++) {
    await device.scope(() => body(model, x));
    await optimizer.step();
    optimizer.zeroGrad();
  }
  if (model instanceof OffloadModel) {
    expect(device.memory().live).toMatchObject({ parameter: 0, staging: 0, optimizer: 0 });
    expect(model.hostMemory()).toMatchObject({ stagingBytes: 0, parkedBytes: 0 });
  }
  return { weights: await weightsOf(model), inputGrad: await x.grad!.toArray(), device };
}

/** Expects the outcome of the model that stays on its device, and returns the offloaded one's. */
export async function expectAsPlain(
  build: Build,
  body: Body,
  options: OffloadOptions,
  count?: number,
) {
  const plain = await outcome(build, body, undefined, count);
  const offloaded = await outcome(build, body, options, count);
  expectClose(offloaded.weights, plain.weights, 1e-6);
  expectClose(offloaded.inputGrad, plain.inputGrad, 1e-6, 'input');
  return offloaded;
}

/**
 * Begins a run with four layers. Each is a flat of three values beside its gradient: a parameter
 * and both moments.
 */
export function begin(options: OffloadOptions = {}) {
  const device = newDevice();
  const model = new OffloadModel(new Sequential(device, linears(device, 4)), options);
  const optimizer = new AdamW(model.parameters(), { lr: 0.05 });
  const input = (step: number) => {
    const values = Float32Array.from({ length: 4 * DIM }, (_, i) => Math.sin(i + 3 * step));
    return device.tensor(values, [4, DIM]);
  };
  const lossOf = async (step: number) => mean(square((await model.call(input(step))) as Tensor));
  const backward = (step: number) =>
    device.scope(async () => {
      const loss = await lossOf(step);
      await loss.backward();
      return loss.item();
    });
  const trainStep = async (step: number) => {
    const loss = await backward(step);
    await optimizer.step();
    optimizer.zeroGrad();
    return loss;
  };
  const losses = async (steps: number) => {
    const found: number[] = [];
    for (let step = 0; step < steps; step++) {
      found.push(await trainStep(step));
    }
    return found;
  };
  return { device, model, optimizer, input, lossOf, backward, trainStep, losses };
}

export type Run = ReturnType<typeof begin>;
