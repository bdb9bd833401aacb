// One rank's share of an optimizer step: micro-steps forward and backward, the norm over all ranks,
// the update. Nothing waits for the device but the loss and the norm, which every rank must know.

import type { ProcessGroup } from '@shardweave/collectives';
import { clipCoefficient, LossScaler, streamedSquaredGradNorm } from '@shardweave/nn';
import { crossEntropy, type Device, type Tensor } from '@shardweave/tensor-core';
import type { Dataset } from '../data/dataset.js';
import type { RunConfig } from '../run-config.js';
import type { StepOutcome } from './train-loop.js';
import type { TrainingModel } from './training-model.js';

export interface TrainingStepOptions {
  readonly config: RunConfig;
  readonly rank: number;
  readonly device: Device;
  readonly model: TrainingModel;
  readonly data: Dataset;
  /** Absent on one rank. */
  readonly group: ProcessGroup | undefined;
}

export class TrainingStep {
  readonly #options: TrainingStepOptions;
  /** For f16, whose smallest gradients vanish without it. */
  readonly #scaler: LossScaler | undefined;

  constructor(options: TrainingStepOptions) {
    this.#options = options;
    this.#scaler = options.config.precision === 'fp16' ? new LossScaler() : undefined;
  }

  /** Runs step `step` (from 0) with learning rate `lr`; collective. */
  async run(step: number, lr: number): Promise<StepOutcome> {
    const { config, device, model } = this.#options;
    const lossScale = this.#scaler?.factor ?? 1;
    const { loss, squaredNorm } = await device.scope(() => this.#gradients(step, lossScale));
    const norm = Math.sqrt(squaredNorm) / lossScale;
    // The norm is the same on all ranks, so they agree on what to skip without asking each other.
    const isSkipped = this.#scaler !== undefined && !Number.isFinite(norm);
    this.#scaler?.update(isSkipped);
    if (!isSkipped) {
      for (const group of model.optimizer.groups) group.lr = lr;
      await device.scope(async () => {
        // A factor of 1 is left out: the kernel then reads gradients as they are.
        const factor = clipCoefficient(norm, config.clip) / lossScale;
        const gradScale = factor === 1 ? undefined : device.full([1], factor);
        await model.optimizer.step({ gradScale });
      });
    }
    model.optimizer.zeroGrad();
    return { loss, gradNorm: norm, lossScale, isSkipped };
  }

  /** Adds up the gradients of all micro-steps, and both sums over ranks. */
  async #gradients(
    step: number,
    lossScale: number,
  ): Promise<{ loss: number; squaredNorm: number }> {
    const { config, model, group } = this.#options;
    const { gradAccum } = config;
    const losses: Tensor[] = [];
    for (let microStep = 0; microStep < gradAccum; microStep++) {
      const run = () => this.#microStep(step, microStep, lossScale);
      const isLast = microStep === gradAccum - 1;
      const wrapper = model.fsdp ?? model.ddp;
      const isReducing = !config.noSync || isLast || wrapper === undefined;
      losses.push(isReducing ? await run() : await wrapper.noSync(run));
    }
    const squared = await streamedSquaredGradNorm(model.optimizer.parameters());
    const [squaredNorm, ...means] = await Promise.all([squared, ...losses].map((t) => t.item()));
    const sums = Float32Array.of(means.reduce((sum, x) => sum + x, 0) / gradAccum, squaredNorm!);
    if (group !== undefined && group.worldSize > 1) {
      const bytes = new Uint8Array(sums.buffer);
      await group.allReduce(bytes, bytes, { dtype: 'f32', op: 'sum', tag: 'loss and norm' });
      sums[0]! /= group.worldSize;
      // Each rank has the whole norm; the mean is the same on all, whatever devices they have.
      if (model.fsdp === undefined) sums[1]! /= group.worldSize;
    }
    return { loss: sums[0]!, squaredNorm: sums[1]! };
  }

  /** Forward and backward of this rank's rows; the mean loss, f32 of one element. */
  #microStep(step: number, microStep: number, lossScale: number): Promise<Tensor> {
    const { config, rank, device, model, data } = this.#options;
    return device.scope(async () => {
      const batch = data.microBatch(step, rank, microStep);
      device.random.begin({ step, rowOffset: batch.firstRow });
      const shape = [batch.rows, config.seq];
      const tokens = device.tensor(batch.tokens, shape, { tag: 'staging' });
      const targets = device.tensor(batch.targets, shape, { tag: 'staging' });
      const loss = crossEntropy(await model.module.call(tokens), targets);
      const gradient = device.full(loss.shape, lossScale / config.gradAccum);
      await loss.backward({ gradient });
      return loss.detach();
    });
  }
}
