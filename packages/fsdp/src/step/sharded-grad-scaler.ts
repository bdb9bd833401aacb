// nn's loss scaling for ranks that each see only their shard of the gradients: an overflow on one
// rank makes all of them skip the step. It has the calls and stages of PyTorch's GradScaler.

import type { ProcessGroup } from '@shardweave/collectives';
import {
  LossScaler,
  type LossScalerOptions,
  type LossScalerState,
  type StepOptions,
} from '@shardweave/nn';
import { type AnyOptimizer, gradNodes, multiplyGradients } from '@shardweave/nn/flat';
import type { Tensor } from '@shardweave/tensor-core';
import { FsdpStateError } from '../errors.js';
import { callIdentity } from '../ranks/call-identity.js';
import { CallQueue } from '../ranks/call-queue.js';
import { abortOnError } from '../tree/rank-failure.js';
import { toFsdpError } from '../tree/to-fsdp-error.js';
import { callQueueOf } from '../unit/unit-links.js';

/**
 * The options of a LossScaler, with the group whose ranks agree on overflows in place of
 * `reduceFoundInf`.
 */
export interface ShardedGradScalerOptions extends Omit<LossScalerOptions, 'reduceFoundInf'> {
  /** All ranks that step together: those of the whole model, not those of an expert. */
  readonly processGroup: ProcessGroup;
}

/** The name of the call in errors, and for ranks to compare. */
const OPERATION = 'unscale';

/** How far an optimizer has come since the last update. */
type Stage = 'ready' | 'unscaled' | 'stepped';

interface OptimizerTurn {
  readonly stage: Stage;
  readonly isSkipping: boolean;
}

/**
 * Scales the loss so that small 16-bit gradients do not vanish. A step is: backward of scale(loss);
 * unscale(optimizer) where gradients are clipped or looked at; step(optimizer) in place of the
 * optimizer's own; update() after all optimizers.
 */
export class ShardedGradScaler {
  readonly #group: ProcessGroup;
  readonly #scaler: LossScaler;
  readonly #turns = new Map<AnyOptimizer, OptimizerTurn>();

  constructor({ processGroup, ...options }: ShardedGradScalerOptions) {
    this.#group = processGroup;
    this.#scaler = new LossScaler(options);
  }

  /** The factor that losses are multiplied by at present. */
  get factor(): number {
    return this.#scaler.factor;
  }

  /** The loss times the factor; differentiable. */
  scale(loss: Tensor): Tensor {
    return this.#scaler.scale(loss);
  }

  /**
   * Divides the optimizer's gradients by the factor, wherever they rest, and agrees with all ranks
   * whether any is not finite. Collective; waits for the device. Allowed once a step.
   * @throws {FsdpStateError} after unscale or step of the same optimizer
   */
  async unscale(optimizer: AnyOptimizer): Promise<void> {
    await CallQueue.inTurn([callQueueOf(this.#group)], () => this.#unscale(optimizer));
  }

  async #unscale(optimizer: AnyOptimizer): Promise<void> {
    const { stage } = this.#turnOf(optimizer);
    if (stage !== 'ready') {
      throw new FsdpStateError(
        `ShardedGradScaler.unscale: expected an optimizer that was neither unscaled nor stepped since the last update, got one that was ${stage}. Call update() once a step.`,
      );
    }
    const parameters = optimizer.parameters();
    const largest = await abortOnError(this.#group, OPERATION, () =>
      gradNodes(parameters, Infinity),
    );
    const isSkipping = await this.#anyRank(
      largest.some((nodes) => nodes.some(({ value }) => !Number.isFinite(value))),
    );
    const [first] = parameters;
    if (first !== undefined) {
      const { device } = first;
      await device.scope(() =>
        multiplyGradients(parameters, device.full([1], this.#scaler.unscale)),
      );
    }
    this.#turns.set(optimizer, { stage: 'unscaled', isSkipping });
  }

  /**
   * Steps the optimizer unless a gradient was not finite on any rank; it unscales first, where
   * unscale was not called. Collective where it unscales.
   * @returns whether the optimizer stepped, alike on all ranks
   * @throws {FsdpStateError} on a second call without an update between
   */
  async step(optimizer: AnyOptimizer, options: StepOptions = {}): Promise<boolean> {
    const { stage } = this.#turnOf(optimizer);
    if (stage === 'stepped') {
      throw new FsdpStateError(
        'ShardedGradScaler.step: expected one step of each optimizer between updates, got a second one. Call update() once a step.',
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
   * @throws {FsdpStateError} where no optimizer was unscaled or stepped since the last update
   */
  update(): void {
    if (this.#turns.size === 0) {
      throw new FsdpStateError(
        'ShardedGradScaler.update: expected an optimizer to be unscaled or stepped since the last update, got none. Call step(optimizer) first.',
      );
    }
    this.#scaler.update([...this.#turns.values()].some(({ isSkipping }) => isSkipping));
    this.#turns.clear();
  }

  stateDict(): LossScalerState {
    return this.#scaler.stateDict();
  }

  loadStateDict(state: LossScalerState): void {
    this.#scaler.loadStateDict(state);
  }

  #turnOf(optimizer: AnyOptimizer): OptimizerTurn {
    return this.#turns.get(optimizer) ?? { stage: 'ready', isSkipping: false };
  }

  async #anyRank(isHere: boolean): Promise<boolean> {
    if (this.#group.worldSize === 1) {
      return isHere;
    }
    const count = Float32Array.of(isHere ? 1 : 0);
    const wire = new Uint8Array(count.buffer);
    const identity = callIdentity(OPERATION);
    const options = { dtype: 'f32', op: 'sum', tag: 'foundInf', identity } as const;
    try {
      await this.#group.allReduce(wire, wire, options);
    } catch (error) {
      throw toFsdpError(error, { operation: OPERATION, units: [], group: this.#group });
    }
    return count[0]! > 0;
  }
}
