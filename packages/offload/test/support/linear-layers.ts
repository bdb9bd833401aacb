// Tests of calls and of stores share a few linear layers on a reference device, and a step over
// them.

import { Linear, type Module } from '@shardweave/nn';
import { Device, mean, square, type Tensor } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';

export const DIM = 5;

export const newDevice = () => new Device(createReferenceBackend(), { seed: 11 });
export const linear = (device: Device) => new Linear(device, { inFeatures: DIM, outFeatures: DIM });
export const linears = (device: Device, count: number) =>
  Array.from({ length: count }, () => linear(device));

export function rows(device: Device, count = 4): Tensor {
  const values = Float32Array.from({ length: count * DIM }, (_, i) => Math.sin(i + 1));
  return device.tensor(values, [count, DIM], { requiresGrad: true });
}

export type Body = (model: Module, x: Tensor) => Promise<void>;

export const squared: Body = async (model, x) => mean(square(await model.call(x))).backward();
