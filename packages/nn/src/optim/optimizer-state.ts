// An optimizer's state by parameter name: the form of a state dict, and the check whether one fits.

import type { Tensor } from '@shardweave/tensor-core';
import { OptimizerError, StateDictError } from '../errors.js';
import type { FlatMember } from '../flat/layout/flat-plan.js';
import { type FlatStateBytes, joinRuns, runAt } from '../flat/layout/flat-state.js';
import { isSharded } from '../flat/placement.js';
import type { HostTensor } from '../host-tensor.js';

const F32_BYTES = 4;

/** The state of one parameter on the host. Its tensors have the parameter's shape. */
export interface ParameterState {
  readonly step: number;
  readonly tensors: ReadonlyMap<string, HostTensor<'f32'>>;
}

/**
 * An optimizer's options and state on the host, by parameter name. PyTorch's state dicts have the
 * same by index.
 */
export interface OptimizerStateDict<Options> {
  /** The state by parameter name. Parameters that were never stepped are absent. */
  readonly state: ReadonlyMap<string, ParameterState>;
  readonly paramGroups: readonly (Options & { readonly params: readonly string[] })[];
}

/**
 * The names of an optimizer's parameters.
 * @throws {OptimizerError} for a parameter without a name, and for one of which this rank has only
 * a part (sharded)
 */
export function namesOf(
  parameters: readonly Tensor[],
  named: Iterable<readonly [string, Tensor]>,
): Map<Tensor, string> {
  const names = new Map([...named].map(([name, tensor]) => [tensor, name] as const));
  for (const param of parameters) {
    if (!names.has(param)) {
      throw new OptimizerError(
        `optimizer: expected a name for each parameter, got none for one of shape [${param.shape.join(', ')}].`,
      );
    }
    if (isSharded(param)) {
      throw new OptimizerError(
        `optimizer: expected all ${param.size} elements of '${names.get(param)}' here, got a shard of ${param.piece!.length}. For sharded parameters, gatherFullOptimStateDict and loadFullOptimStateDict of @shardweave/fsdp.`,
      );
    }
  }
  return names;
}

/** One member's part of the state of its flat; undefined where it was never stepped. */
export function memberState(
  { param, start, length }: FlatMember,
  { runs, tensors }: FlatStateBytes,
): ParameterState | undefined {
  const run = runAt(runs, start);
  if (run === undefined) {
    return undefined;
  }
  const own = run.names.map((name) => {
    const bytes = tensors.get(name)?.slice(start * 4, (start + length) * 4);
    const data = bytes ?? new Uint8Array(length * 4);
    return [name, { dtype: 'f32', shape: param.shape, data }] as const;
  });
  return { step: run.step, tensors: new Map(own) };
}

/**
 * Joins the state of a flat's members. Each contributes elements [first, first + length) of its
 * entry, which are placed at `start`.
 */
export function joinMembers(
  members: readonly {
    readonly start: number;
    readonly length: number;
    readonly first: number;
    readonly entry: ParameterState | undefined;
  }[],
  elementCount: number,
): FlatStateBytes {
  const runs = joinRuns(
    members.map(({ start, length, entry }) => {
      return { start, length, step: entry?.step ?? 0, names: entry?.tensors.keys() ?? [] };
    }),
  );
  const tensors = new Map<string, Uint8Array>();
  for (const { start, length, first, entry } of members) {
    if (entry === undefined || length === 0) {
      continue;
    }
    for (const [name, { data }] of entry.tensors) {
      const whole = tensors.get(name) ?? new Uint8Array(elementCount * 4);
      tensors.set(name, whole);
      whole.set(data.subarray(first * 4, (first + length) * 4), start * 4);
    }
  }
  return { runs, tensors };
}

/**
 * Checks whether state fits parameters of these names.
 * @throws {StateDictError} for a name that no parameter has, and for a state tensor of another
 * shape
 */
export function checkStates(
  operation: string,
  states: ReadonlyMap<string, ParameterState>,
  names: ReadonlyMap<Tensor, string>,
): void {
  const known = new Map([...names].map(([tensor, name]) => [name, tensor]));
  const unexpected = [...states.keys()].filter((name) => !known.has(name));
  const mismatched = [...states].flatMap(([name, { tensors }]) => {
    const param = known.get(name);
    const isFitting = [...tensors.values()].every(
      ({ shape, data }) =>
        shape.join() === param?.shape.join() && data.byteLength === param.size * F32_BYTES,
    );
    return param === undefined || isFitting ? [] : [name];
  });
  if (unexpected.length + mismatched.length > 0) {
    throw new StateDictError(
      `${operation}: expected state of this module's parameters. Unexpected: ${list(unexpected)}. Misshapen: ${list(mismatched)}.`,
      { unexpected, mismatched },
    );
  }
}

function list(names: readonly string[]): string {
  return names.join(', ') || 'none';
}
