// Dynamic loss scaling for f16 (Micikevicius et al., 2018) by the rules of PyTorch's GradScaler.
// The loss is multiplied by a factor so that small gradients do not vanish, and the factor halves
// when large ones overflow.

import { mul, type Tensor } from '@shardweave/tensor-core';
import {
  above,
  checkOptions,
  FUNCTION,
  type OptionRules,
  optional,
  whole,
} from '../check-options.js';

/**
 * Options of LossScaler, the dynamic loss scaling of mixed precision (Micikevicius et al., 2018);
 * the defaults are those of PyTorch's GradScaler.
 */
export interface LossScalerOptions {
  /** The initial factor. Default 65536. */
  readonly initScale?: number;
  /** What the factor is multiplied by after growthInterval steps without an overflow. Default 2. */
  readonly growthFactor?: number;
  /** What the factor is multiplied by after an overflow. Default 0.5. */
  readonly backoffFactor?: number;
  /** How many steps without an overflow the factor waits before it grows. Default 2000. */
  readonly growthInterval?: number;
  /**
   * Tells whether any rank has overflowed, given whether this one has. By default only this rank
   * counts.
   */
  readonly reduceFoundInf?: (found: boolean) => Promise<boolean>;
}

/** What a resumed run needs of a LossScaler. */
export interface LossScalerState {
  readonly scale: number;
  /** Steps since the factor last changed. */
  readonly growthTracker: number;
}

const RULES: OptionRules<LossScalerOptions> = {
  initScale: optional(above(0)),
  growthFactor: optional(above(1)),
  backoffFactor: optional({
    expected: 'a number between 0 and 1, neither of them',
    holds: (value) => typeof value === 'number' && value > 0 && value < 1,
  }),
  growthInterval: optional(whole(1)),
  reduceFoundInf: optional(FUNCTION),
};
const STATE_RULES: OptionRules<LossScalerState> = { scale: above(0), growthTracker: whole(0) };

/**
 * Scales losses by a factor that adapts itself. One training step calls, in this order: backward of
 * scale(loss); clipGradNorm with `unscale`; foundInf(norm); the optimizer's step, unless an
 * overflow was found; and update(found).
 */
export class LossScaler {
  readonly #growthFactor: number;
  readonly #backoffFactor: number;
  readonly #growthInterval: number;
  readonly #reduceFoundInf: (found: boolean) => Promise<boolean>;
  #factor: number;
  #growthTracker = 0;

  constructor(options: LossScalerOptions = {}) {
    checkOptions('LossScaler', options, RULES);
    this.#factor = options.initScale ?? 65536;
    this.#growthFactor = options.growthFactor ?? 2;
    this.#backoffFactor = options.backoffFactor ?? 0.5;
    this.#growthInterval = options.growthInterval ?? 2000;
    this.#reduceFoundInf = options.reduceFoundInf ?? (async (foundInf) => foundInf);
  }

  /** The factor that losses are multiplied by at present. */
  get factor(): number {
    return this.#factor;
  }

  /** The factor that undoes the scaling of gradients, 1 / factor. */
  get unscale(): number {
    return 1 / this.#factor;
  }

  /** The loss times the factor. Gradients flow through it. */
  scale(loss: Tensor): Tensor {
    return mul(loss, this.#factor);
  }

  /**
   * Whether a gradient overflowed on any rank, which their norm shows: it is finite only if all of
   * them are. It waits once for the device, and for the other ranks.
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
    if (this.#growthTracker < this.#growthInterval) {
      return;
    }
    this.#growthTracker = 0;
    const grown = Math.fround(this.#factor * this.#growthFactor);
    if (Number.isFinite(grown)) {
      this.#factor = grown; // the loss is f32
    }
  }

  stateDict(): LossScalerState {
    return { scale: this.#factor, growthTracker: this.#growthTracker };
  }

  /**
   * @throws {NnConfigError} for values that stateDict cannot have returned; nothing has changed
   * then
   */
  loadStateDict(state: LossScalerState): void {
    checkOptions('LossScaler.loadStateDict', state, STATE_RULES);
    this.#factor = state.scale;
    this.#growthTracker = state.growthTracker;
  }
}
