// One optimizer's step of one flat: which of its parameters move, and by what; and the kernel call
// for it, of the whole or of a run of its elements.
//
// Note [parameters of one flat]
// A parameter without a gradient is passed over, as PyTorch does where `grad` is None: no decay, no
// momentum, no count. So parameters of one flat may differ in their counts of steps, and so in
// their bias corrections. Each distinct pair of a parameter group and a count is a group of its own
// to the kernel, which is still called once.

import type { Segment, Tensor, View } from '@shardweave/tensor-core';
import type { FlatPart } from '../flat/homes/flat-home.js';
import { chooseMembers, type FlatPlan, type StepChoice, segmentsIn } from './flat-plan.js';
import type { FlatState, Progress } from './flat-state.js';
import type { OptimizerGroup } from './param-groups.js';

/** What some parameters of a flat have in common in a step. */
export interface StepGroup<Options> {
  readonly options: OptimizerGroup<Options>;
  /** Their steps, this one included. */
  readonly step: number;
  /** Whether a state tensor is used for the first time, and holds zeros. */
  isNew(name: string): boolean;
}

/** One flat's step, or that of a run of its elements: all views are of equal size. */
export interface FlatStep<Options> {
  /** f32, changed in place. */
  readonly param: View;
  readonly grad: View;
  /** State tensors by name, f32, changed in place. */
  readonly state: ReadonlyMap<string, View>;
  /** What belongs to which of `groups`; the rest is left alone. Keeps its identity. */
  readonly segments: readonly Segment[];
  readonly groups: readonly StepGroup<Options>[];
  readonly gradScale: View | undefined;
}

/** A step of a flat, made before it is taken. */
export interface PlannedStep<Options> {
  readonly plan: FlatPlan;
  readonly choice: StepChoice;
  readonly groups: readonly StepGroup<Options>[];
  readonly state: FlatState;
  /** How far its parameters are afterwards. */
  readonly progress: ReadonlyMap<Tensor, Progress>;
}

export interface PlanStepOptions<Options> {
  readonly state: FlatState;
  readonly groups: readonly OptimizerGroup<Options>[];
  /** Those of its parameters that have elements here, and a gradient. */
  readonly moving: ReadonlySet<Tensor>;
  /** State tensors that a group uses. */
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
 * Encodes a part by `encode`. Kernels step f32: 16-bit parameters are stepped in a copy, rounded
 * once.
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
