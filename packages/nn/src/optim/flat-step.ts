// One kernel call of an optimizer: a flat, or a run of its elements, on the device.

import type { Segment, View } from '@shardweave/tensor-core';
import type { FlatPart } from '../residence/flat-home.js';
import { type FlatPlan, segmentsOf } from './flat-plan.js';
import type { OptimizerGroup } from './optimizer.js';
import type { FlatState } from './optimizer-state.js';

/** One flat's step, or that of a run of its elements: all views are of equal size. */
export interface FlatStep<Options> {
  /** f32, changed in place. */
  readonly param: View;
  readonly grad: View;
  /** State tensors by name, f32, changed in place. */
  readonly state: ReadonlyMap<string, View>;
  /** What belongs to which group; the rest is left alone. Keeps its identity. */
  readonly segments: readonly Segment[];
  readonly groups: readonly OptimizerGroup<Options>[];
  /** Steps of this flat, this one included. */
  readonly step: number;
  /** Whether a state tensor is used for the first time, and holds zeros. */
  isNew(name: string): boolean;
  readonly gradScale: View | undefined;
}

/** What a step was called with, and where it stands. */
export interface StepCall<Options> {
  readonly groups: readonly OptimizerGroup<Options>[];
  readonly gradScale: View | undefined;
  readonly state: FlatState;
  readonly step: number;
}

/** Encodes a part by `encode`. Kernels step f32: 16-bit parameters are stepped in a copy, rounded once. */
export function stepPart<Options>(
  plan: FlatPlan,
  part: FlatPart,
  { state, ...rest }: StepCall<Options>,
  encode: (step: FlatStep<Options>) => void,
): void {
  const segments = segmentsOf(plan, part);
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
  const step = {
    ...rest,
    grad: grad.view(),
    state: new Map(views),
    segments,
    isNew: (name: string) => state.unused.has(name),
  };
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
