// Dynamic loss scaling for f16 (Micikevicius et al., 2018) with the rules of PyTorch's GradScaler:
// the loss is multiplied so that small gradients do not vanish, and the factor halves when large
// ones overflow.

import { mul, type Tensor } from '@shardweave/tensor-core';
import { NnConfigError } from '../errors.js';

export interface LossScalerOptions {
  /** First factor. Default 65536. */
  readonly initScale?: number;
  /** Multiplies the factor after growthInterval steps without overflow. Default 2. */
  readonly growthFactor?: number;
  /** Multiplies the factor after an overflow. Default 0.5. */
  readonly backoffFactor?: number;
  /** Default 2000. */
  readonly growthInterval?: number;
  /** Agrees over ranks: whether any of them overflowed. Default: this rank alone. */
  readonly reduceFoundInf?: (found: boolean) => Promise<boolean>;
}

/** What a resumed run needs. */
export interface LossScalerState {
  readonly scale: number;
  /** Steps since the last change or overflow. */
  readonly growthTracker: number;
}

/**
 * One step: backward of scale(loss), clipGradNorm with `unscale`, foundInf(norm), the optimizer's step
 * unless it was found, update(found).
 */
export class LossScaler {
  readonly #growthFactor: number;
  readonly #backoffFactor: number;
  readonly #growthInterval: number;
  readonly #reduceFoundInf: (found: boolean) => Promise<boolean>;
  #factor: number;
  #growthTracker = 0;

  constructor(options: LossScalerOptions = {}) {
    this.#factor = options.initScale ?? 65536;
    this.#growthFactor = options.growthFactor ?? 2;
    this.#backoffFactor = options.backoffFactor ?? 0.5;
    this.#growthInterval = options.growthInterval ?? 2000;
    this.#reduceFoundInf = options.reduceFoundInf ?? (async (found) => found);
    const isValid =
      this.#factor > 0 &&
      this.#growthFactor > 1 &&
      this.#backoffFactor > 0 &&
      this.#backoffFactor < 1 &&
      this.#growthInterval >= 1;
    if (!isValid) {
      throw new NnConfigError(
        'LossScaler: expected initScale above 0, growthFactor above 1, backoffFactor in (0, 1) and growthInterval of at least 1.',
      );
    }
  }

  /** What losses are multiplied by at present. */
  get factor(): number {
    return this.#factor;
  }

  /** What gradients are multiplied by to undo it. */
  get unscale(): number {
    return 1 / this.#factor;
  }

  /** loss times the factor; differentiable. */
  scale(loss: Tensor): Tensor {
    return mul(loss, this.#factor);
  }

  /**
   * Whether a gradient overflowed on any rank, from their norm: it is finite only if all are. Waits
   * for the device, once, and for the other ranks.
   * @param norm one element, scaled or not
   */
  async foundInf(norm: Tensor): Promise<boolean> {
    return this.#reduceFoundInf(!Number.isFinite(await norm.item()));
  }

  /** Ends a step: the factor shrinks after an overflow and grows after an interval without one. */
  update(found: boolean): void {
    if (found) {
      this.#factor *= this.#backoffFactor;
      this.#growthTracker = 0;
      return;
    }
    this.#growthTracker += 1;
    if (this.#growthTracker < this.#growthInterval) return;
    this.#growthTracker = 0;
    const grown = Math.fround(this.#factor * this.#growthFactor);
    if (Number.isFinite(grown)) this.#factor = grown; // the loss is f32
  }

  stateDict(): LossScalerState {
    return { scale: this.#factor, growthTracker: this.#growthTracker };
  }

  loadStateDict(state: LossScalerState): void {
    this.#factor = state.scale;
    this.#growthTracker = state.growthTracker;
  }
}
