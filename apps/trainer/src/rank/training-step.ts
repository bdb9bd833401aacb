// One rank's share of an optimizer step: micro-steps forward and backward, then the update. Nothing waits
// for the device but the loss and the norm, which every rank must know.

import type { ProcessGroup } from '@shardweave/collectives';
import { crossEntropy, type Device, type Tensor } from '@shardweave/tensor-core';
import type { Dataset } from '../data/dataset.js';
import type { RunConfig } from '../run-config.js';
import { meanOverRanks } from './mean-over-ranks.js';
import type { Strategy } from './strategies/strategy.js';
import type { StepOutcome } from './train-loop.js';
import { Update } from './update.js';

export interface TrainingStepOptions {
  readonly config: RunConfig;
  readonly rank: number;
  readonly device: Device;
  readonly strategy: Strategy;
  readonly data: Dataset;
  /** The group of all ranks of the job. */
  readonly group: ProcessGroup;
}

export class TrainingStep {
  readonly #options: TrainingStepOptions;
  readonly #update: Update;

  constructor(options: TrainingStepOptions) {
    this.#options = options;
    this.#update = new Update(options);
  }

  /** Runs step `step` (from 0) with learning rate `lr`; collective. */
  async run(step: number, lr: number): Promise<StepOutcome> {
    const { device, strategy, group } = this.#options;
    const { lossScale } = this.#update;
    for (const optimizerGroup of strategy.optimizer.groups) {
      optimizerGroup.lr = lr;
    }
    const { loss: own } = await device.scope(() => this.#gradients(step, lossScale));
    own.catch(() => undefined); // seen below, unless the update fails first
    const { gradNorm, isSkipped } = await this.#update.run();
    strategy.optimizer.zeroGrad();
    const loss = await meanOverRanks(await own, group, 'loss');
    return { loss, gradNorm, lossScale, isSkipped };
  }

  /** Adds up the gradients of all micro-steps; the mean of this rank's losses, on its way here. */
  async #gradients(step: number, lossScale: number): Promise<{ readonly loss: Promise<number> }> {
    const { config, strategy } = this.#options;
    const { gradAccum } = config;
    const losses: Tensor[] = [];
    for (let microStep = 0; microStep < gradAccum; microStep++) {
      const run = () => this.#microStep(step, microStep, lossScale);
      const isLast = microStep === gradAccum - 1;
      losses.push(isLast || !config.noSync ? await run() : await strategy.noSync(run));
    }
    const values = Promise.all(losses.map((loss) => loss.item()));
    return { loss: values.then((all) => all.reduce((sum, x) => sum + x, 0) / gradAccum) };
  }

  /** Forward and backward of this rank's rows; the mean loss, f32 of one element. */
  #microStep(step: number, microStep: number, lossScale: number): Promise<Tensor> {
    const { config, rank, device, strategy, data } = this.#options;
    return device.scope(async () => {
      const batch = data.microBatch(step, rank, microStep);
      device.random.begin({ step, rowOffset: batch.firstRow });
      const shape = [batch.rows, config.seq];
      const tokens = device.tensor(batch.tokens, shape, { tag: 'staging' });
      const targets = device.tensor(batch.targets, shape, { tag: 'staging' });
      const loss = crossEntropy(await strategy.module.call(tokens), targets);
      const gradient = device.full(loss.shape, lossScale / config.gradAccum);
      await loss.backward({ gradient });
      return loss.detach();
    });
  }
}
