// The dtypes that a module's inputs and buffers have while it runs.

import { castInPlace, type Module, mapTensors } from '@shardweave/nn';
import { cast, type DType, isFloat } from '@shardweave/tensor-core';
import type { ResolvedFsdpOptions } from './resolve-options.js';
import { modulesOutsideInstances } from './unit/own-parameters.js';

/**
 * The root of a mixed-precision tree brings float inputs to its compute dtype, an instance with
 * forceInputToFp32 to f32, both with autograd and in any container.
 */
export function castInputs<T>(
  args: T,
  options: ResolvedFsdpOptions & { readonly isRoot: boolean },
): T {
  if (options.isMixed && options.isRoot) {
    return castFloats(args, options.computeDType);
  }
  return options.forceInputToFp32 ? castFloats(args, 'f32') : args;
}

/** Brings the float buffers below `module`, up to inner instances, to `dtype`. */
export function castBuffers(module: Module, dtype: DType): void {
  for (const each of modulesOutsideInstances(module)) {
    for (const [, buffer] of each.ownBuffers()) {
      castInPlace(buffer, dtype);
    }
  }
}

function castFloats<T>(value: T, dtype: DType): T {
  return mapTensors(value, (tensor) => (isFloat(tensor.dtype) ? cast(tensor, dtype) : tensor));
}
