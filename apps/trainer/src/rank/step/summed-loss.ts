// The losses of some rows as one number on the device, for training and for evaluation.

import type { Module, TokenArgs } from '@shardweave/nn';
import { type Device, mul, sum, type Tensor } from '@shardweave/tensor-core';
import type { MicroBatch } from '../../data/dataset.js';

export interface SummedLossOptions {
  readonly device: Device;
  /** The module of a Strategy. */
  readonly module: Module<TokenArgs, Tensor>;
  readonly seq: number;
}

/** The weighted sum of the losses of a batch, which may have no rows: f32 of one element. */
export async function summedLoss(
  batch: MicroBatch,
  { device, module, seq }: SummedLossOptions,
): Promise<Tensor> {
  const onDevice = (values: Uint32Array | Float32Array) =>
    device.tensor(values, [batch.rows, seq], { tag: 'staging' });
  const { weights, segments, positions } = batch;
  const losses = await module.call(onDevice(batch.tokens), {
    targets: onDevice(batch.targets),
    segments: segments && onDevice(segments),
    positions: positions && onDevice(positions),
  }); // [rows, seq]
  return sum(weights === undefined ? losses : mul(losses, onDevice(weights)));
}
