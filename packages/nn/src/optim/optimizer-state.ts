// The state of an optimizer: of a flat on the device, of a flat as bytes, and by parameter name.

import { slice, type Tensor } from '@shardweave/tensor-core';
import { StateDictError } from '../errors.js';
import type { HostTensor } from '../host-tensor.js';
import type { FlatMember, FlatPlan } from './flat-plan.js';

/** State of one flat: f32 tensors of the flat's size, by name. */
export interface FlatState {
  /** Steps taken. */
  step: number;
  readonly tensors: ReadonlyMap<string, Tensor>;
  /** Those that no step has used yet: they are zeros, and a momentum of them begins with the gradient. */
  readonly unused: Set<string>;
}

/** What an optimizer keeps of one flat. */
export interface StateHeader {
  readonly step: number;
  /** Tensors that some step has used; the others are zeros. */
  readonly names: readonly string[];
}

/** State of one flat as f32 bytes, wherever it rests. */
export interface FlatStateBytes {
  readonly step: number;
  readonly tensors: ReadonlyMap<string, Uint8Array>;
}

/** State of one parameter on the host, tensors in the parameter's shape. */
export interface ParameterState {
  readonly step: number;
  readonly tensors: ReadonlyMap<string, HostTensor<'f32'>>;
}

export interface OptimizerStateDict<Options> {
  /** By parameter name; parameters that were never stepped are absent. */
  readonly state: ReadonlyMap<string, ParameterState>;
  readonly paramGroups: readonly (Options & { readonly params: readonly string[] })[];
}

/** A member's part of the state of its flat, with the member's name. */
export function memberState(
  { param, start, length }: FlatMember,
  { step, tensors }: FlatStateBytes,
  names: ReadonlyMap<Tensor, string>,
): [string, ParameterState] {
  const own = [...tensors].map(([name, bytes]) => {
    const data = bytes.slice(start * 4, (start + length) * 4);
    return [name, { dtype: 'f32', shape: param.shape, data }] as const;
  });
  return [names.get(param)!, { step, tensors: new Map(own) }];
}

/**
 * Whether a dict fits an optimizer of `plans`.
 * @throws {StateDictError} where names, shapes, groups or step counts do not fit
 */
export function checkStateDict<Options>(
  dict: OptimizerStateDict<Options>,
  {
    names,
    plans,
    numGroups,
  }: {
    readonly names: ReadonlyMap<Tensor, string>;
    readonly plans: readonly FlatPlan[];
    readonly numGroups: number;
  },
): void {
  const known = new Map([...names].map(([tensor, name]) => [name, tensor]));
  const unexpected = [...dict.state.keys()].filter((name) => !known.has(name));
  const mismatched = [...dict.state].flatMap(([name, { tensors }]) => {
    const size = known.get(name)?.size;
    const isFitting = [...tensors.values()].every(({ data }) => data.byteLength === size! * 4);
    return size === undefined || isFitting ? [] : [name];
  });
  const missing: string[] = [];
  for (const { members } of plans) {
    const states = members.map(({ param }) => dict.state.get(names.get(param)!));
    if (new Set(states.map((state) => state?.step)).size > 1) {
      missing.push(...members.map(({ param }) => names.get(param)!));
    }
  }
  if (dict.paramGroups.length !== numGroups) {
    throw new StateDictError(
      `optimizer.loadStateDict: expected ${numGroups} parameter groups, got ${dict.paramGroups.length}.`,
    );
  }
  if (unexpected.length + mismatched.length + missing.length > 0) {
    throw new StateDictError(
      `optimizer.loadStateDict: unknown parameters: ${list(unexpected)}; misshapen state: ${list(mismatched)}; parameters of one flat with unequal step counts: ${list(missing)}.`,
      { missing, unexpected, mismatched },
    );
  }
}

/** Copies a member's part of one flat's state into another's. */
export function copyState(
  source: { readonly member: FlatMember; readonly state: FlatState | undefined },
  target: FlatMember,
  into: FlatState,
): void {
  if (target.length === 0) {
    return;
  }
  const { device } = target.param;
  const part = (tensor: Tensor, start: number) =>
    slice(tensor, { axis: 0, start, end: start + target.length });
  for (const [name, from] of source.state?.tensors ?? []) {
    const to = into.tensors.get(name)!;
    device.noGrad(() =>
      device.scope(() => device.copyInto(part(to, target.start), part(from, source.member.start))),
    );
  }
}

function list(names: readonly string[]): string {
  return names.length === 0 ? 'none' : names.join(', ');
}
