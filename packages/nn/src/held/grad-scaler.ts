// Dynamic loss scaling for f16 (Micikevicius et al., 2018), with the calls and rules of PyTorch's
// GradScaler, whatever wraps the model. The loss is multiplied by a factor so that small gradients
// do not vanish, and the factor halves when large ones overflow. An overflow on one rank makes all
// of them skip the step.

import { mul, type Tensor } from '@shardweave/tensor-core';
import {
  above,
  checkOptions,
  checkValue,
  type OptionRules,
  optional,
  whole,
} from '../check-options.js';
import { OptimizerError } from '../errors.js';
import { gradNodes } from '../optim/grad-nodes.js';
import type { StepOptions } from '../optim/optimizer.js';
import {
  areSharded,
  type GradientTarget,
  multiplyGradients,
  resolveTarget,
  withGradients,
} from './grad-norm.js';
import { type AnyOptimizer, OPTIMIZER } from './held-flats.js';

/** Options of GradScaler; the defaults are those of PyTorch's. */
export interface GradScalerOptions {
  /** The initial factor. Default 65536. */
  readonly initScale?: number;
  /** What the factor is multiplied by after growthInterval steps without an overflow. Default 2. */
  readonly growthFactor?: number;
  /** What the factor is multiplied by after an overflow. Default 0.5. */
  readonly backoffFactor?: number;
  /** How many steps without an overflow the factor waits before it grows. Default 2000. */
  readonly growthInterval?: number;
}

/** What a resumed run needs of a GradScaler. */
export interface GradScalerState {
  readonly scale: number;
  /** Steps since the factor last changed. */
  readonly growthTracker: number;
}

const RULES: OptionRules<GradScalerOptions> = {
  initScale: optional(above(0)),
  growthFactor: optional(above(1)),
  backoffFactor: optional({
    expected: 'a number between 0 and 1, neither of them',
    holds: (value) => typeof value === 'number' && value > 0 && value < 1,
  }),
  growthInterval: optional(whole(1)),
};
const STATE_RULES: OptionRules<GradScalerState> = { scale: above(0), growthTracker: whole(0) };

/** How far an optimizer has come since the last update. */
type Stage = 'ready' | 'unscaled' | 'stepped';

interface OptimizerTurn {
  readonly stage: Stage;
  readonly isSkipping: boolean;
}

/**
 * Scales losses by a factor that adapts itself. A step is: backward of scale(loss);
 * unscale(optimizer) where gradients are clipped or looked at; step(optimizer) in place of the
 * optimizer's own; update() after all optimizers.
 *
 * Whoever clips may leave the gradients as they are instead, which takes no kernel more:
 * clipGradNorm with `unscale: 1 / factor`; the optimizer's own step with that scale, unless the
 * norm is not finite; and update(whether it was not). Norms are alike on all ranks.
 */
export class GradScaler {
  readonly #target: GradientTarget;
  readonly #growthFactor: number;
  readonly #backoffFactor: number;
  readonly #growthInterval: number;
  readonly #turns = new Map<AnyOptimizer, OptimizerTurn>();
  #factor: number;
  #growthTracker = 0;

  /** @param target the whole model, or models, whose ranks step together */
  constructor(target: GradientTarget, options: GradScalerOptions = {}) {
    const { models, parameters } = resolveTarget(target, 'GradScaler');
    checkOptions('GradScaler', options, RULES);
    this.#target = models ?? parameters; // an iterator gives them only once
    this.#factor = options.initScale ?? 65536;
    this.#growthFactor = options.growthFactor ?? 2;
    this.#backoffFactor = options.backoffFactor ?? 0.5;
    this.#growthInterval = options.growthInterval ?? 2000;
  }

  /** The factor that losses are multiplied by at present. */
  get factor(): number {
    return this.#factor;
  }

  /** The loss times the factor. Gradients flow through it. */
  scale(loss: Tensor): Tensor {
    return mul(loss, this.#factor);
  }

  /**
   * Divides the optimizer's gradients by the factor, wherever they rest, and finds whether any is
   * not finite on some rank. It waits for the device, and all ranks that hold the model call it.
   * Allowed once a step.
   * @throws {OptimizerError} after unscale or step of the same optimizer
   */
  async unscale(optimizer: AnyOptimizer): Promise<void> {
    const operation = 'unscale';
    await withGradients(resolveTarget(this.#target, operation), operation, async (held) => {
      const { ranks } = held;
      checkValue('GradScaler.unscale', 'optimizer', optimizer, OPTIMIZER);
      const { stage } = this.#turnOf(optimizer);
      if (stage !== 'ready') {
        throw new OptimizerError(
          `GradScaler.unscale: expected an optimizer that was neither unscaled nor stepped since the last update, got one that was ${stage}. Call update() once a step.`,
        );
      }
      const parameters = optimizer.parameters();
      const largest = await ranks.attempt(operation, () => gradNodes(parameters, Infinity));
      const isHere = largest.some((nodes) => nodes.some(({ value }) => !Number.isFinite(value)));
      const count = Float32Array.of(isHere ? 1 : 0);
      if (areSharded(held)) {
        await ranks.sum(operation, count);
      }
      const [first] = parameters;
      if (first !== undefined) {
        const { device } = first;
        await device.scope(() => multiplyGradients(parameters, device.full([1], 1 / this.#factor)));
      }
      this.#turns.set(optimizer, { stage: 'unscaled', isSkipping: count[0]! > 0 });
    });
  }

  /**
   * Steps the optimizer unless a gradient was not finite on any rank; it unscales first, where
   * unscale was not called.
   * @returns whether the optimizer stepped, alike on all ranks
   * @throws {OptimizerError} on a second call without an update between
   */
  async step(optimizer: AnyOptimizer, options: StepOptions = {}): Promise<boolean> {
    checkValue('GradScaler.step', 'optimizer', optimizer, OPTIMIZER);
    const { stage } = this.#turnOf(optimizer);
    if (stage === 'stepped') {
      throw new OptimizerError(
        'GradScaler.step: expected one step of each optimizer between updates, got a second one. Call update() once a step.',
      );
    }
    if (stage === 'ready') {
      await this.unscale(optimizer);
    }
    const { isSkipping } = this.#turnOf(optimizer);
    if (!isSkipping) {
      await optimizer.step(options);
    }
    this.#turns.set(optimizer, { stage: 'stepped', isSkipping });
    return !isSkipping;
  }

  /**
   * Ends the step: the factor shrinks after an overflow, and grows after an interval without one.
   * @param found whether one was found. Default: what unscale and step have found
   * @throws {OptimizerError} where `found` is not given, and no optimizer was unscaled or stepped
   * since the last update
   */
  update(found?: boolean): void {
    if (found === undefined && this.#turns.size === 0) {
      throw new OptimizerError(
        'GradScaler.update: expected an optimizer to be unscaled or stepped since the last update, got none. Call step(optimizer) first.',
      );
    }
    const isFound = found ?? [...this.#turns.values()].some(({ isSkipping }) => isSkipping);
    this.#turns.clear();
    if (isFound) {
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

  stateDict(): GradScalerState {
    return { scale: this.#factor, growthTracker: this.#growthTracker };
  }

  /**
   * @throws {NnConfigError} for values that stateDict cannot have returned; nothing has changed
   * then
   */
  loadStateDict(state: GradScalerState): void {
    checkOptions('GradScaler.loadStateDict', state, STATE_RULES);
    this.#factor = state.scale;
    this.#growthTracker = state.growthTracker;
  }

  #turnOf(optimizer: AnyOptimizer): OptimizerTurn {
    return this.#turns.get(optimizer) ?? { stage: 'ready', isSkipping: false };
  }
}
