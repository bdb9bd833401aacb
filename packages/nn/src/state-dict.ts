// The parameters and buffers of a plain module as values on the host, by path, and back. Sharded
// modules have functions of their own, which gather first.

import { byteSize, type DType, type Tensor } from '@shardweave/tensor-core';
import { NnConfigError, StateDictError } from './errors.js';
import { isCopy, isSharded } from './flat/placement.js';
import { type HostTensor, isConvertible, type LazyTensor } from './host-tensor.js';
import type { Module } from './module.js';
import { fillDeferred } from './parameters/deferred-parameter.js';

/**
 * Reads all parameters and buffers by path, and waits for the device. A shared one appears once,
 * under its first path.
 * @throws {NnConfigError} for a parameter that is sharded or is a copy of values in a store
 */
export async function stateDict(module: Module): Promise<Map<string, HostTensor<DType>>> {
  const reads = namedTensors(module, 'stateDict').map(async ([name, tensor]) => {
    const data = await tensor.toBytes();
    return [name, { dtype: tensor.dtype, shape: tensor.shape, data }] as const;
  });
  return new Map(await Promise.all(reads));
}

/**
 * Gives all parameters and buffers by path without reading them. Each is read when it is asked for,
 * with the values that it has then, so that a model passes through the host one tensor at a time.
 * @throws {NnConfigError} as stateDict does
 */
export function lazyStateDict(module: Module): Map<string, LazyTensor<DType>> {
  const entries = namedTensors(module, 'lazyStateDict').map(([name, tensor]) => {
    const { dtype, shape } = tensor;
    return [name, { dtype, shape, read: () => tensor.toBytes() }] as const;
  });
  return new Map(entries);
}

/**
 * Writes values into a module. Floats are converted to each parameter's dtype; integers fit the
 * same dtype alone. Nothing is written when it throws.
 * @param options.strict whether names that are missing on either side are an error; default true
 * @throws {StateDictError} listing the missing, unexpected and mismatched names
 * @throws {NnConfigError} as stateDict does
 */
export function loadStateDict(
  module: Module,
  state: ReadonlyMap<string, HostTensor>,
  options: { readonly strict?: boolean } = {},
): void {
  for (const { tensor, values } of plan(module, state, options.strict)) {
    write(tensor, values);
  }
}

/**
 * Does the same as loadStateDict with tensors that are read one after the other, for instance from
 * a large file. Names, shapes and dtypes of all are checked before the first is read. The promise
 * resolves when all are written.
 * @throws {StateDictError} as loadStateDict does, and for a tensor that gives another number of
 * bytes than its shape has. In the latter case, and where a read fails, the tensors before it stay
 * written.
 */
export async function streamStateDict(
  module: Module,
  state: ReadonlyMap<string, HostTensor | LazyTensor>,
  options: { readonly strict?: boolean } = {},
): Promise<void> {
  for (const { name, tensor, values } of plan(module, state, options.strict)) {
    if ('data' in values) {
      write(tensor, values);
      continue;
    }
    const { dtype, shape } = values;
    const read = { dtype, shape, data: await values.read() };
    const problem = mismatch(tensor, read);
    if (problem !== undefined) {
      throw new StateDictError(`streamStateDict: '${name}' ${problem}.`, { mismatched: [name] });
    }
    write(tensor, read);
  }
}

interface Load<T> {
  readonly name: string;
  readonly tensor: Tensor;
  readonly values: T;
}

/** Checks the whole state, and pairs each tensor with its values. */
function plan<T extends HostTensor | LazyTensor>(
  module: Module,
  state: ReadonlyMap<string, T>,
  strict = true,
): Load<T>[] {
  const targets = new Map(namedTensors(module, 'loadStateDict'));
  const missing = [...targets.keys()].filter((name) => !state.has(name));
  const unexpected = [...state.keys()].filter((name) => !targets.has(name));
  const problems: string[] = [];
  const mismatched: string[] = [];
  for (const [name, tensor] of targets) {
    const problem = mismatch(tensor, state.get(name));
    if (problem === undefined) {
      continue;
    }
    mismatched.push(name);
    problems.push(`'${name}' ${problem}`);
  }
  if (strict && missing.length > 0) {
    problems.push(`missing: ${missing.join(', ')}`);
  }
  if (strict && unexpected.length > 0) {
    problems.push(`unexpected: ${unexpected.join(', ')}`);
  }
  if (problems.length > 0) {
    throw new StateDictError(`loadStateDict: the state does not fit. ${problems.join('; ')}.`, {
      missing,
      unexpected,
      mismatched,
    });
  }
  return [...targets].flatMap(([name, tensor]): Load<T>[] => {
    const values = state.get(name);
    return values === undefined || tensor.size === 0 ? [] : [{ name, tensor, values }];
  });
}

function namedTensors(module: Module, op: string): [string, Tensor][] {
  const named = [...module.namedParameters(), ...module.namedBuffers()];
  requireHere(named, op);
  return named;
}

/**
 * @throws {NnConfigError} for a tensor whose values rest on other ranks, or elsewhere than in its
 * storage
 */
export function requireHere(named: readonly (readonly [string, Tensor])[], op: string): void {
  for (const [name, tensor] of named) {
    const got = isSharded(tensor)
      ? `a shard of ${tensor.piece!.length}`
      : isCopy(tensor)
        ? 'a copy for computing of what rests elsewhere'
        : undefined;
    if (got === undefined) {
      continue;
    }
    throw new NnConfigError(
      `${op}: expected all ${tensor.size} elements of '${name}' to rest here, got ${got}. Use that of whoever wrapped the module, such as ${op} of @shardweave/fsdp or @shardweave/offload.`,
    );
  }
}

function mismatch(tensor: Tensor, values: HostTensor | LazyTensor | undefined): string | undefined {
  if (values === undefined) {
    return undefined;
  }
  const shape = tensor.shape.join(', ');
  if (shape !== values.shape.join(', ')) {
    return `is [${shape}], got [${values.shape.join(', ')}]`;
  }
  if (!isConvertible(values.dtype, tensor.dtype)) {
    return `is ${tensor.dtype}, which cannot be read from ${values.dtype}`;
  }
  if (!('data' in values)) {
    return undefined;
  }
  const byteLength = tensor.size * byteSize(values.dtype);
  if (values.data.byteLength === byteLength) {
    return undefined;
  }
  return `needs ${byteLength} bytes, got ${values.data.byteLength}`;
}

function write(tensor: Tensor, values: HostTensor): void {
  const { device } = tensor;
  const { dtype, shape, data } = values as HostTensor<DType>;
  fillDeferred(tensor);
  if (dtype === tensor.dtype) {
    tensor.storage.write(data, tensor.offset * byteSize(dtype));
    return;
  }
  device.noGrad(() =>
    device.scope(() => {
      device.copyInto(tensor, device.tensor(data, shape, { dtype, tag: 'staging' }));
    }),
  );
}
