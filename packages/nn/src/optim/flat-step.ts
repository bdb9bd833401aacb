// One optimizer's step of one flat: which of its parameters move and by which options, and the
// kernel call for the whole flat or a run of its elements.
//
// Note [parameters of one flat]
// A parameter without a gradient is skipped, as PyTorch does where `grad` is None: it gets no
// decay, no momentum and no step on its count. So parameters of one flat can differ in their
// counts, and therefore in their bias corrections. The kernel is still called once: each distinct
// pair of a parameter group and a count becomes a step group of its own. If parameters a and b are
// at step 10 and c is at step 9, the step groups are {a, b} and {c}.

import type { Segment, Tensor, View } from '@shardweave/tensor-core';
import {
  chooseMembers,
  type FlatPlan,
  type StepChoice,
  segmentsIn,
} from '../flat/layout/flat-plan.js';
import type { FlatState, Progress } from '../flat/layout/flat-state.js';
import type { FlatPart } from '../flat/stores/flat-home.js';
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

export interface PlanStepOptions<Options> {
  readonly state: FlatState;
  readonly groups: readonly OptimizerGroup<Options>[];
  /** The parameters of the flat that have a gradient, and elements on this device. */
  readonly moving: ReadonlySet<Tensor>;
  /** The names of the state tensors that a group uses. */
  namesOf(group: OptimizerGroup<Options>): readonly string[];
}

export function planStep<Options>(
  plan: FlatPlan,
  { state, groups, moving, namesOf }: PlanStepOptions<Options>,
): PlannedStep<Options> {
  const numbers = new Map<string, number>();
  const distinct: StepGroup<Options>[] = [];
  const progress = new Map<Tensor, Progress>();
  const chosen = plan.members.map(({ param, group }) => {
    if (!moving.has(param)) {
      return undefined;
    }
    const { step, names } = state.progressOf(param);
    const options = groups[group]!;
    progress.set(param, { step: step + 1, names: new Set([...names, ...namesOf(options)]) });
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
 * Encodes the step of a part of the flat by calling `encode`. Kernels step f32 only, so 16-bit
 * parameters are stepped in an f32 copy and rounded once.
 */
export function stepPart<Options>(
  { plan, choice, groups, state }: PlannedStep<Options>,
  part: FlatPart,
  gradScale: View | undefined,
  encode: (step: FlatStep<Options>) => void,
): void {
  const segments = segmentsIn(choice, part);
  if (segments.length === 0) {
    return;
  }
  const { flat } = plan;
  const { start, length, grad } = part;
  const { device } = flat;
  const views = [...state.tensors].map(([name, tensor]) => {
    return [name, part.state.get(name) ?? tensor.storage.view(start, length)] as const;
  });
  const values = part.param ?? flat.storage.view(flat.offset + start, length);
  const step = { grad: grad.view(), state: new Map(views), segments, groups, gradScale };
  if (flat.dtype === 'f32') {
    encode({ ...step, param: values });
    return;
  }
  const copy = device.storage(length, 'f32', 'staging');
  copy.fill();
  device.backend.run('cast', { x: values, out: copy.view() });
  encode({ ...step, param: copy.view() });
  device.backend.run('cast', { x: copy.view(), out: values });
  copy.release();
}
