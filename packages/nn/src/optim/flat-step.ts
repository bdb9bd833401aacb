// One optimizer's step of one flat: which of its parameters move and by which options, and the
// kernel call for the whole flat or a run of its elements.
//
// Note [parameters of one flat]
// A parameter without a gradient is skipped, as PyTorch does where `grad` is None: it gets no
// decay, no momentum and no step on its count. So parameters of one flat can differ in their
// counts, and therefore in their bias corrections. The kernel is still called once: each distinct
// pair of a parameter group and a count becomes a step group of its own. If parameters a and b are
// at step 10 and c is at step 9, the step groups are {a, b} and {c}.

import type { Device, Segment, Tensor, View } from '@shardweave/tensor-core';
import {
  chooseMembers,
  type FlatPlan,
  type StepChoice,
  segmentsIn,
} from '../flat/layout/flat-plan.js';
import type { FlatState, Progress } from '../flat/layout/flat-state.js';
import { hasGradient, markCopies } from '../flat/placement.js';
import type { FlatPart } from '../flat/stores/flat-home.js';
import type { FlatStates } from './flat-states.js';
import type { OptimizerGroup } from './param-groups.js';

/** What the parameters of one step group have in common. */
export interface StepGroup<Options> {
  readonly options: OptimizerGroup<Options>;
  /** Their count of steps, this one included. */
  readonly step: number;
  /** Whether this step is the first that uses a state tensor, which still holds zeros. */
  isNew(name: string): boolean;
}

/** The step of a flat or of a run of its elements. All views have the same size. */
export interface FlatStep<Options> {
  /** The parameters, f32. The step changes them in place. */
  readonly param: View;
  readonly grad: View;
  /** State tensors by name, f32. The step changes them in place. */
  readonly state: ReadonlyMap<string, View>;
  /**
   * Which elements belong to which of `groups`; the step leaves all others alone. Equal steps pass
   * the same array, so kernels can recognize it by identity.
   */
  readonly segments: readonly Segment[];
  readonly groups: readonly StepGroup<Options>[];
  readonly gradScale: View | undefined;
}

/** A step of a flat that has been planned and not yet taken. */
export interface PlannedStep<Options> {
  readonly plan: FlatPlan;
  readonly choice: StepChoice;
  readonly groups: readonly StepGroup<Options>[];
  readonly state: FlatState;
  /** The progress of its parameters after the step. */
  readonly progress: ReadonlyMap<Tensor, Progress>;
}

/** What an optimizer's steps are made of. */
export interface StepRules<Options> {
  /** The optimizer's name, for messages. */
  kind(): string;
  /** The names of the state tensors that a group uses. */
  namesOf(group: OptimizerGroup<Options>): readonly string[];
  /** Encodes the step of a flat or of a part of it. */
  encode(device: Device, step: FlatStep<Options>): void;
}

/** Plans and encodes one optimizer's steps of single flats. */
export class FlatStepper<Options> {
  readonly states: FlatStates;
  readonly #rules: StepRules<Options>;

  constructor(states: FlatStates, rules: StepRules<Options>) {
    this.states = states;
    this.#rules = rules;
  }

  /** @param moving the parameters of the flat that have a gradient, and elements on this device */
  plan(
    plan: FlatPlan,
    groups: readonly OptimizerGroup<Options>[],
    moving: ReadonlySet<Tensor>,
  ): PlannedStep<Options> {
    const state = this.states.ensure(plan);
    const numbers = new Map<string, number>();
    const distinct: StepGroup<Options>[] = [];
    const progress = new Map<Tensor, Progress>();
    const chosen = plan.members.map(({ param, group }) => {
      if (!moving.has(param)) {
        return undefined;
      }
      const { step, names } = state.progressOf(param);
      const options = groups[group]!;
      const used = this.#rules.namesOf(options);
      progress.set(param, { step: step + 1, names: new Set([...names, ...used]) });
      const key = [group, step, ...names].join();
      let number = numbers.get(key);
      if (number === undefined) {
        number = distinct.length;
        numbers.set(key, number);
        distinct.push({ options, step: step + 1, isNew: (name) => !names.has(name) });
      }
      return number;
    });
    return { plan, choice: chooseMembers(plan, chosen), groups: distinct, state, progress };
  }

  /**
   * Encodes the step of a part of the flat. Kernels step f32 only, so 16-bit parameters are stepped
   * in an f32 copy and rounded once.
   */
  encode(
    { plan, choice, groups, state }: PlannedStep<Options>,
    part: FlatPart,
    scale: Tensor | undefined,
  ): void {
    const segments = segmentsIn(choice, part);
    if (segments.length === 0) {
      return;
    }
    const { flat } = plan;
    const { start, length, grad } = part;
    const { device } = flat;
    const gradScale = scale?.storage.view(scale.offset, 1); // its tensor may be disposed by then
    const views = [...state.tensors].map(([name, tensor]) => {
      return [name, part.state.get(name) ?? tensor.storage.view(start, length)] as const;
    });
    const values = part.param ?? flat.storage.view(flat.offset + start, length);
    const step = { grad: grad.view(), state: new Map(views), segments, groups, gradScale };
    if (flat.dtype === 'f32') {
      this.#rules.encode(device, { ...step, param: values });
      return;
    }
    const copy = device.storage(length, 'f32', 'staging');
    copy.fill();
    device.backend.run('cast', { x: values, out: copy.view() });
    this.#rules.encode(device, { ...step, param: copy.view() });
    device.backend.run('cast', { x: copy.view(), out: values });
    copy.release();
  }

  /**
   * A function that notes a step of the parameters of a flat that have a gradient now. Copies that
   * were gathered or published from the flat are stale then, also where nothing moves here because
   * this rank's part is all padding: ranks must agree on it.
   */
  markerOf({ flat, members }: FlatPlan): () => void {
    const by = `${this.#rules.kind()}.step`;
    const stepped = members.filter(({ param }) => hasGradient(param));
    const places = stepped.map(({ start, length }) => ({ start: flat.offset + start, length }));
    const params = stepped.map(({ param }) => param);
    return () => {
      flat.storage.markWritten(by, places);
      markCopies(params, by);
    };
  }
}

/** The parameters of a flat that have a gradient, and elements on this rank. */
export function movingOf({ members }: FlatPlan): Set<Tensor> {
  const moving = members.filter(({ param, length }) => length > 0 && hasGradient(param));
  return new Set(moving.map(({ param }) => param));
}
