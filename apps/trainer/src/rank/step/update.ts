// What follows the gradients of a step: their norm over all ranks, and the optimizer, whose kernel
// applies a single factor that unscales and clips. Gradients are read twice and never written.

import {
  clipCoefficient,
  GradScaler,
  type GradScalerState,
  gradNorm,
  type Module,
} from '@shardweave/nn';
import type { Device } from '@shardweave/tensor-core';
import type { RunConfig } from '../../run-config.js';
import type { Strategy } from '../strategies/strategy.js';
import type { StepPhase } from './phase-memory.js';

export interface UpdateOutcome {
  /**
   * The norm of the unscaled gradients, before clipping; may be infinite or NaN. Equal on all
   * ranks.
   */
  readonly gradNorm: number;
  readonly isSkipped: boolean;
}

export interface UpdateOptions {
  readonly config: Pick<RunConfig, 'precision' | 'clip'>;
  readonly device: Device;
  readonly strategy: Strategy;
  readonly onPhase?: (phase: StepPhase) => void;
  /** The norm of all gradients. Default: nn's; a dry run has a number of its own. */
  readonly gradNorm?: (module: Module) => Promise<number>;
}

export class Update {
  readonly #options: UpdateOptions;
  readonly #scaler: GradScaler | undefined;

  constructor(options: UpdateOptions) {
    this.#options = options;
    const { config, strategy } = options;
    this.#scaler = config.precision === 'fp16' ? new GradScaler(strategy.module) : undefined;
  }

  /**
   * The present factor of losses. f16 needs one, because its smallest gradients would vanish
   * without it.
   */
  get lossScale(): number {
    return this.#scaler?.factor ?? 1;
  }

  /** The state of the scaler, for a run that goes on; undefined where nothing is scaled. */
  get scaler(): GradScalerState | undefined {
    return this.#scaler?.stateDict();
  }

  /** Sets the state of the scaler from a save; a save of another precision has none. */
  loadScaler(state: GradScalerState | undefined): void {
    if (state !== undefined) {
      this.#scaler?.loadStateDict(state);
    }
  }

  /** Steps, unless a gradient of any rank overflowed in f16. Collective. */
  async run(): Promise<UpdateOutcome> {
    const { config, device, strategy, onPhase } = this.#options;
    const { lossScale } = this;
    onPhase?.('norm');
    // All ranks have the same norm, so they agree on what to skip without asking each other.
    const norm = (await (this.#options.gradNorm ?? gradNorm)(strategy.module)) / lossScale;
    const isSkipped = this.#scaler !== undefined && !Number.isFinite(norm);
    this.#scaler?.update(isSkipped);
    onPhase?.('update');
    if (!isSkipped) {
      await device.scope(async () => {
        // A factor of 1 is left out; the kernel then reads gradients as they are.
        const factor = clipCoefficient(norm, config.clip) / lossScale;
        const gradScale = factor === 1 ? undefined : device.full([1], factor);
        await strategy.step({ gradScale });
      });
    }
    return { gradNorm: norm, isSkipped };
  }
}
