// Entries of a state for parameters in blocks. They have the words of the blocks, as a state dict
// gives them, or floats of the parameter's shape. Those are encoded as they are read, unless they
// themselves come from blocks of the type.

import { toF32Array } from '@shardweave/dtypes';
import { BlockNumberError } from '@shardweave/dtypes/blocks';
import { isFloat, type Tensor } from '@shardweave/tensor-core';
import { StateDictError } from '../errors.js';
import { type ElementRange, isDeviceDType } from '../host-tensor.js';
import { encodedWords, restShape } from '../parameters/encoded-parameter.js';
import type { ExpectedEntry } from './check-state.js';
import { bytesOf, type GivenEntry } from './state-entry.js';

/** Whether an entry has floats for a parameter in blocks. */
function isFloats(parameter: Tensor, entry: GivenEntry | undefined): boolean {
  return (
    parameter.blocks !== undefined &&
    entry !== undefined &&
    isDeviceDType(entry.dtype) &&
    isFloat(entry.dtype)
  );
}

/** What an entry has to be like: floats are compared with the shape that a parameter has. */
export function expectedOf(
  parameter: Tensor,
  entry: GivenEntry | undefined,
  rest: ExpectedEntry,
): ExpectedEntry {
  return isFloats(parameter, entry) ? { dtype: parameter.dtype, shape: parameter.shape } : rest;
}

/** The entry in the form in which the parameter rests. */
export function restEntry(parameter: Tensor, name: string, entry: GivenEntry): GivenEntry {
  if (!isFloats(parameter, entry)) {
    return entry;
  }
  const given = 'blocks' in entry ? entry.blocks : undefined;
  if (given?.type === parameter.blocks!.type) {
    return given.words;
  }
  const shape = restShape(parameter);
  const readPart = async ({ first, count }: ElementRange) => {
    try {
      return await encodedWords(parameter, { start: first, length: count }, async (from, numbers) =>
        toF32Array(await bytesOf(name, entry, 'f32', { first: from, count: numbers }), 'f32'),
      );
    } catch (cause) {
      if (!(cause instanceof BlockNumberError)) {
        throw cause;
      }
      const { below, found } = cause;
      throw new StateDictError(
        `loadStateDict: expected numbers below ${below} in '${name}', as ${parameter.blocks!.type} holds them, got ${found}. Mend the weights, or load them without blocks.`,
        { mismatched: [name] },
      );
    }
  };
  return {
    dtype: 'u32',
    shape,
    read: () => readPart({ first: 0, count: shape[0]! }),
    readPart,
  };
}
