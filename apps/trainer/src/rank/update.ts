// What follows the gradients of a step: their norm over all ranks, unscaling, clipping, the optimizer.

import type { ProcessGroup } from '@shardweave/collectives';
import { clipGradNorm, type FullyShardedDataParallel, ShardedGradScaler } from '@shardweave/fsdp';
import { type AdamW, clipCoefficient, LossScaler, streamedSquaredGradNorm } from '@shardweave/nn';
import type { Device } from '@shardweave/tensor-core';
import type { RunConfig } from '../run-config.js';
import { meanOverRanks } from './mean-over-ranks.js';
import type { TrainingModel } from './training-model.js';

export interface UpdateOutcome {
  /** Unscaled, before clipping; may be infinite or not a number. Equal on all ranks. */
  readonly gradNorm: number;
  readonly isSkipped: boolean;
}

export interface Update {
  /** What losses are multiplied by at present: for f16, whose smallest gradients vanish without it. */
  readonly lossScale: number;
  /** Steps, unless a gradient of any rank overflowed in f16. Collective. */
  run(): Promise<UpdateOutcome>;
}

export interface UpdateOptions {
  readonly config: Pick<RunConfig, 'precision' | 'clip'>;
  readonly device: Device;
  readonly model: TrainingModel;
  /** The group of all ranks of the job. */
  readonly group: ProcessGroup;
}

export function makeUpdate(options: UpdateOptions): Update {
  const { fsdp } = options.model;
  return fsdp === undefined ? new WholeUpdate(options) : new ShardedUpdate(fsdp, options);
}

/** Each rank has a part of the gradients: fsdp's norm and scaler agree over ranks. */
class ShardedUpdate implements Update {
  readonly #fsdp: FullyShardedDataParallel;
  readonly #optimizer: AdamW;
  readonly #clip: number;
  readonly #scaler: ShardedGradScaler | undefined;

  constructor(fsdp: FullyShardedDataParallel, { config, model, group }: UpdateOptions) {
    this.#fsdp = fsdp;
    this.#optimizer = model.optimizer;
    this.#clip = config.clip;
    this.#scaler =
      config.precision === 'fp16' ? new ShardedGradScaler({ processGroup: group }) : undefined;
  }

  get lossScale(): number {
    return this.#scaler?.factor ?? 1;
  }

  async run(): Promise<UpdateOutcome> {
    const [optimizer, scaler] = [this.#optimizer, this.#scaler];
    await scaler?.unscale(optimizer);
    const gradNorm = await clipGradNorm(this.#fsdp, this.#clip);
    if (scaler === undefined) {
      await optimizer.step();
      return { gradNorm, isSkipped: false };
    }
    const hasStepped = await scaler.step(optimizer);
    scaler.update();
    return { gradNorm, isSkipped: !hasStepped };
  }
}

/**
 * Each rank has all gradients. One factor that the optimizer's kernel applies clips and unscales, so
 * gradients that rest off the device are passed over once for their norm and once for the step.
 */
class WholeUpdate implements Update {
  readonly #options: UpdateOptions;
  readonly #scaler: LossScaler | undefined;

  constructor(options: UpdateOptions) {
    this.#options = options;
    this.#scaler = options.config.precision === 'fp16' ? new LossScaler() : undefined;
  }

  get lossScale(): number {
    return this.#scaler?.factor ?? 1;
  }

  async run(): Promise<UpdateOutcome> {
    const { config, device, model, group } = this.#options;
    const { optimizer } = model;
    const { lossScale } = this;
    const squares = await device.scope(async () =>
      (await streamedSquaredGradNorm(optimizer.parameters())).item(),
    );
    // The mean is the same on all ranks, so they agree on what to skip without asking each other.
    const gradNorm = Math.sqrt(await meanOverRanks(squares, group, 'norm')) / lossScale;
    const isSkipped = this.#scaler !== undefined && !Number.isFinite(gradNorm);
    this.#scaler?.update(isSkipped);
    if (!isSkipped) {
      await device.scope(async () => {
        // A factor of 1 is left out: the kernel then reads gradients as they are.
        const factor = clipCoefficient(gradNorm, config.clip) / lossScale;
        const gradScale = factor === 1 ? undefined : device.full([1], factor);
        await optimizer.step({ gradScale });
      });
    }
    return { gradNorm, isSkipped };
  }
}
