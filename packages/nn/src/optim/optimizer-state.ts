// The state of an optimizer: of a flat on the device, of a flat as bytes, and by parameter name.

import type { Tensor } from '@shardweave/tensor-core';
import type { HostTensor } from '../host-tensor.js';
import type { FlatMember } from './flat-plan.js';

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
