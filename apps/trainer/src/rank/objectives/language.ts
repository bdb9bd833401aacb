// The loss of a language model: that of each token after the others.

import { type Device, mul, sum, type Tensor } from '@shardweave/tensor-core';
import type { MicroBatch } from '../../data/dataset.js';
import type { RunConfig } from '../../run-config.js';
import type { BackwardOptions, Objective, TaskModule } from './objective.js';

export interface ObjectiveOptions {
  readonly device: Device;
  /** The module of a Strategy. */
  readonly module: TaskModule;
  readonly config: Pick<RunConfig, 'seq'>;
}

export class LanguageObjective implements Objective<MicroBatch> {
  readonly #options: ObjectiveOptions;

  constructor(options: ObjectiveOptions) {
    this.#options = options;
  }

  async backward(batch: MicroBatch, { scale, onPhase }: BackwardOptions): Promise<Tensor> {
    onPhase('forward');
    return backwardOf(await this.loss(batch), { scale, onPhase });
  }

  async loss(batch: MicroBatch): Promise<Tensor> {
    const { device, module, config } = this.#options;
    const { seq } = config;
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
}

/** Goes backward from a loss; resolves with it, without its graph. */
export async function backwardOf(
  loss: Tensor,
  { scale, onPhase }: BackwardOptions,
): Promise<Tensor> {
  onPhase('backward');
  await loss.backward({ gradient: loss.device.full(loss.shape, scale) });
  return loss.detach();
}
