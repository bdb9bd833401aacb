// The part of an optimizer's steps that concerns flats on the device. Kernels are encoded at once,
// unless a save has yet to read the values that they change: then the step waits for it.

import type { Tensor } from '@shardweave/tensor-core';
import { OptimizerError } from '../errors.js';
import type { FlatPlan } from '../flat/layout/flat-plan.js';
import { flatHomeOf } from '../flat/stores/flat-home.js';
import { type FlatStepper, movingOf } from './flat-step.js';
import type { OptimizerGroup } from './param-groups.js';

/** A flat on the device, the gradient that steps it, and the parameters that have one. */
interface ResidentTurn {
  readonly plan: FlatPlan;
  readonly grad: Tensor;
  readonly moving: ReadonlySet<Tensor>;
}

export class ResidentSteps<Options extends object> {
  readonly #stepper: FlatStepper<Options>;
  /** The end of steps that wait for a save to read their flats. */
  #waiting: Promise<void> | undefined;

  constructor(stepper: FlatStepper<Options>) {
    this.#stepper = stepper;
  }

  /** The flats on the device that have a gradient. */
  turnsOf(plans: readonly FlatPlan[]): ResidentTurn[] {
    return plans.flatMap((plan) => {
      const { grad } = plan.flat;
      const isTurn = flatHomeOf(plan.flat) === undefined && grad !== undefined;
      return isTurn ? [{ plan, grad, moving: movingOf(plan) }] : [];
    });
  }

  /**
   * Steps flats. Those that a save has yet to read wait for it, with the gradients, the scale and
   * the options of this call, behind earlier steps that wait.
   */
  async step(
    turns: readonly ResidentTurn[],
    groups: readonly OptimizerGroup<Options>[],
    scale: Tensor | undefined,
  ): Promise<void> {
    const isWaiting = ({ plan }: ResidentTurn) =>
      this.#waiting !== undefined || plan.flat.storage.readers.size > 0;
    const later = turns.filter(isWaiting);
    for (const turn of turns) {
      if (!later.includes(turn)) {
        this.#stepNow(turn, groups, scale);
      }
    }
    if (later.length === 0) {
      return;
    }
    const copies = groups.map((group) => ({ ...group }));
    const step = this.#stepLater(later, copies, scale);
    const waiting = step.catch(() => undefined); // its caller hears of a failure
    this.#waiting = waiting;
    await step.finally(() => {
      if (this.#waiting === waiting) {
        this.#waiting = undefined;
      }
    });
  }

  async #stepLater(
    turns: readonly ResidentTurn[],
    groups: readonly OptimizerGroup<Options>[],
    scale: Tensor | undefined,
  ): Promise<void> {
    const before = this.#waiting;
    const held = [...turns.map(({ grad }) => grad), ...(scale === undefined ? [] : [scale])];
    const versions = turns.map(({ grad }) => grad.storage.version);
    for (const { storage } of held) {
      storage.retain();
    }
    try {
      await before;
      for (const [i, turn] of turns.entries()) {
        for (const reader of turn.plan.flat.storage.readers) {
          await reader.whenClosed();
        }
        if (turn.grad.storage.version !== versions[i]) {
          throw new OptimizerError(
            `optimizer.step: expected the gradient of '${turn.plan.flat.name}' to stay until a save has read its values, got a backward beside it. Await the step first, or call zeroGrad.`,
          );
        }
        this.#stepNow(turn, groups, scale);
      }
    } finally {
      for (const { storage } of held) {
        storage.release();
      }
    }
  }

  #stepNow(
    { plan, grad, moving }: ResidentTurn,
    groups: readonly OptimizerGroup<Options>[],
    scale: Tensor | undefined,
  ): void {
    if (moving.size > 0) {
      const step = this.#stepper.plan(plan, groups, moving);
      const part = { start: 0, length: plan.flat.size, param: undefined, grad, state: new Map() };
      this.#stepper.encode(step, part, scale);
      step.state.advance(step.progress);
    }
    this.#stepper.markerOf(plan)();
  }
}
