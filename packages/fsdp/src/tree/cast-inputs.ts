// The dtypes that a module's inputs and buffers have while it runs.

import { castInPlace, type Module } from '@shardweave/nn';
import { castFloats } from '@shardweave/nn/flat';
import type { DType } from '@shardweave/tensor-core';
import type { ResolvedFsdpOptions } from '../resolve-options.js';
import { modulesOutsideInstances } from './own-parameters.js';

/** The instance that inputs come to. */
interface InputPlace {
  readonly options: ResolvedFsdpOptions;
  readonly isRoot: boolean;
}

/**
 * Casts the float tensors in `args`, whatever containers hold them, and records the cast for
 * autograd. The root of a mixed-precision tree casts them to its compute dtype; an instance with
 * forceInputToFp32 casts them to f32; any other instance leaves them as they are.
 */
export function castInputs<T>(args: T, { options, isRoot }: InputPlace): T {
  if (options.isMixed && isRoot) {
    return castFloats(args, options.computeDType);
  }
  return options.forceInputToFp32 ? castFloats(args, 'f32') : args;
}

/**
 * Casts the float buffers of `module` and of the modules below it to `dtype`; inner instances cast
 * their own.
 */
export function castBuffers(module: Module, dtype: DType): void {
  for (const each of modulesOutsideInstances(module)) {
    for (const [, buffer] of each.ownBuffers()) {
      castInPlace(buffer, dtype);
    }
  }
}
