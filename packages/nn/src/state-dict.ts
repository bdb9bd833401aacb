// A plain module's parameters and buffers as values on the host, by path, and back. Sharded modules
// have their own, which gathers first.

import { byteSize, type DType, type Tensor } from '@shardweave/tensor-core';
import { fillDeferred } from './deferred-parameter.js';
import { NnConfigError, StateDictError } from './errors.js';
import { type HostTensor, isDeviceDType } from './host-tensor.js';
import type { Module } from './module.js';

/**
 * All parameters and buffers by path, a shared one once under its first path. Waits for the device.
 * @throws {NnConfigError} where a parameter lies here only in part
 */
export async function stateDict(module: Module): Promise<Map<string, HostTensor<DType>>> {
  const reads = namedTensors(module).map(async ([name, tensor]) => {
    const data = await tensor.toBytes();
    return [name, { dtype: tensor.dtype, shape: tensor.shape, data }] as const;
  });
  return new Map(await Promise.all(reads));
}

/**
 * Writes values into a module, converted to each parameter's dtype. Nothing is written when it
 * throws.
 * @param options.strict whether names missing on either side are an error. Default true.
 * @throws {StateDictError} listing missing, unexpected and mismatched names
 */
export function loadStateDict(
  module: Module,
  state: ReadonlyMap<string, HostTensor>,
  options: { readonly strict?: boolean } = {},
): void {
  const { strict = true } = options;
  const targets = new Map(namedTensors(module));
  const missing = [...targets.keys()].filter((name) => !state.has(name));
  const unexpected = [...state.keys()].filter((name) => !targets.has(name));
  const problems: string[] = [];
  const mismatched: string[] = [];
  for (const [name, tensor] of targets) {
    const problem = mismatch(tensor, state.get(name));
    if (problem === undefined) continue;
    mismatched.push(name);
    problems.push(`'${name}' ${problem}`);
  }
  if (strict && missing.length > 0) problems.push(`missing: ${missing.join(', ')}`);
  if (strict && unexpected.length > 0) problems.push(`unexpected: ${unexpected.join(', ')}`);
  if (problems.length > 0) {
    throw new StateDictError(`loadStateDict: the state does not fit. ${problems.join('; ')}.`, {
      missing,
      unexpected,
      mismatched,
    });
  }
  for (const [name, tensor] of targets) {
    const values = state.get(name);
    if (values !== undefined && tensor.size > 0) write(tensor, values as HostTensor<DType>);
  }
}

function namedTensors(module: Module): [string, Tensor][] {
  const named = [...module.namedParameters(), ...module.namedBuffers()];
  for (const [name, { piece, size }] of named) {
    if (piece !== undefined && piece.length !== size) {
      throw new NnConfigError(
        `stateDict: expected all ${size} elements of '${name}' here, got a shard of ${piece.length}. Use the sharded module's own state dict.`,
      );
    }
  }
  return named;
}

function mismatch(tensor: Tensor, values: HostTensor | undefined): string | undefined {
  if (values === undefined) return undefined;
  const shape = tensor.shape.join(', ');
  if (shape !== values.shape.join(', ')) return `is [${shape}], got [${values.shape.join(', ')}]`;
  if (!isDeviceDType(values.dtype)) return `cannot be read from ${values.dtype}`;
  const byteLength = tensor.size * byteSize(values.dtype);
  if (values.data.byteLength === byteLength) return undefined;
  return `needs ${byteLength} bytes, got ${values.data.byteLength}`;
}

function write(tensor: Tensor, values: HostTensor<DType>): void {
  const { device } = tensor;
  const { dtype, shape, data } = values;
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
