// The part of an optimizer's steps that concerns flats off the device: one step at a time, of which
// one that failed half-way is finished before the next.

import type { Tensor } from '@shardweave/tensor-core';
import type { FlatPlan } from '../flat/layout/flat-plan.js';
import {
  type FlatHome,
  type FlatPart,
  type FlatTurn,
  flatHomeOf,
} from '../flat/stores/flat-home.js';
import { type FlatStepper, movingOf, type PlannedStep } from './flat-step.js';
import type { OptimizerGroup } from './param-groups.js';
import { StoredStep } from './stored-step.js';

/** What a step over a store begins with. */
export interface StoredCall<Options> {
  readonly groups: readonly OptimizerGroup<Options>[];
  readonly scale: Tensor | undefined;
  /** How many flats may be on their way to the device while another one is stepped. */
  readonly flatsAhead: number;
}

export class StoredSteps<Options extends object> {
  readonly #stepper: FlatStepper<Options>;
  /** A step that failed half-way. */
  #unfinished: StoredStep | undefined;
  /**
   * Versions of the gradients that a failed step used, kept where that step was finished by
   * something other than `step` (a read or a commit of the store). A caller who then repeats the
   * step with the same gradients must not step twice.
   */
  #finished: ReadonlyMap<FlatHome, number> | undefined;

  constructor(stepper: FlatStepper<Options>) {
    this.#stepper = stepper;
  }

  /** Finishes a step that failed half-way; undefined where there is none. */
  finish(): Promise<void> | undefined {
    return this.#unfinished?.finish();
  }

  /** Notes that the caller has seen the end of its step, so the next one is a new step. */
  forget(): void {
    this.#finished = undefined;
  }

  /**
   * Whether a call repeats, with the same gradients, a failed step that something else has finished
   * meanwhile.
   */
  isRepeated(plans: readonly FlatPlan[]): boolean {
    const homes = homesOf(plans);
    const finished = this.#finished;
    return (
      finished !== undefined &&
      homes.length === finished.size &&
      homes.every((home) => finished.get(home) === home.gradientVersion)
    );
  }

  /**
   * Begins a step. It keeps copies of the options and of the scale, for it may fail half-way and be
   * finished later.
   * @param plans those of all flats with a gradient that rest off the device
   */
  begin(
    plans: readonly FlatPlan[],
    { groups, scale, flatsAhead }: StoredCall<Options>,
  ): StoredStep {
    const homes = homesOf(plans);
    const copies = groups.map((group) => ({ ...group }));
    scale?.storage.retain();
    const versions = new Map(homes.map((home) => [home, home.gradientVersion]));
    const turns = plans.flatMap((plan) => this.#turnsOf(plan, copies, scale));
    const step = new StoredStep(homes, turns, {
      flatsAhead,
      ended: (isWhole) => {
        scale?.storage.release();
        this.#unfinished = undefined;
        this.#finished = isWhole ? versions : undefined;
      },
    });
    this.#unfinished = step;
    return step;
  }

  /** The turn of a flat, where anything of it moves. */
  #turnsOf(
    plan: FlatPlan,
    groups: readonly OptimizerGroup<Options>[],
    scale: Tensor | undefined,
  ): Omit<FlatTurn, 'isChanging'>[] {
    const mark = this.#stepper.markerOf(plan);
    mark();
    const moving = movingOf(plan);
    if (moving.size === 0) {
      return [];
    }
    let step: PlannedStep<Options> | undefined;
    const start = () => {
      step = this.#stepper.plan(plan, groups, moving);
      const { state, progress } = step;
      const names = [...state.tensors.keys()];
      const resting = this.#stepper.states.restingOf(plan.flat);
      return flatHomeOf(plan.flat)!.start(resting, { names, runs: state.runsAfter(progress) });
    };
    const use = (part: FlatPart) => this.#stepper.encode(step!, part, scale);
    const kept = () => {
      mark(); // again, for a copy may have been made since the step began
      step!.state.advance(step!.progress);
    };
    return [{ start, use, kept }];
  }
}

function homesOf(plans: readonly FlatPlan[]): FlatHome[] {
  return plans.map(({ flat }) => flatHomeOf(flat)!);
}
