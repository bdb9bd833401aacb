// What a parameter's piece says about the place of its values and its gradient: here and whole,
// here in part, or here as a copy of what rests elsewhere.

import { Tensor } from '@shardweave/tensor-core';
import { restSize } from '../parameters/encoded-parameter.js';
import { flatHomeOf } from './stores/flat-home.js';

/**
 * Whether other devices hold parts of the flat that a parameter belongs to. It is true even where
 * all elements of this parameter are here, since what is computed from them is still a result of
 * this rank alone.
 */
export function isSharded(tensor: Tensor): boolean {
  const { piece } = tensor;
  return piece !== undefined && ((piece.numShards ?? 1) > 1 || piece.length !== restSize(tensor));
}

/**
 * Whether backward has left a gradient for a parameter: its own or in its flat, on the device or in
 * the flat's home.
 */
export function hasGradient(parameter: Tensor): boolean {
  const { gradSink, piece } = parameter;
  if (gradSink?.hasGradient !== undefined && piece !== undefined) {
    return gradSink.hasGradient(parameter);
  }
  return hasFlatGradient(piece?.flat ?? parameter);
}

/** Whether a flat has a gradient, no matter which of its parameters it is for. */
export function hasFlatGradient(flat: Tensor): boolean {
  return flat.grad !== undefined || flatHomeOf(flat)?.hasGradient === true;
}

/**
 * Whether a parameter's storage holds a copy of values that rest in a shard or a store. Such a copy
 * is filled around each use. A packed parameter is no copy but a view of its flat, and so is one
 * that a single rank shards in f32.
 */
export function isCopy({ piece, storage }: Tensor): boolean {
  return piece !== undefined && storage !== piece.flat.storage;
}

/**
 * What a state dict reads and writes for a parameter or buffer: itself, the words of its blocks, or
 * where it is a copy for computing of a packed one, that one's place in its flat.
 */
export function masterOf(tensor: Tensor): Tensor {
  const { piece, shape } = tensor;
  if (piece?.isPacked !== true) {
    return tensor.blocks?.words ?? tensor;
  }
  return new Tensor(piece.flat.storage, shape, piece.flat.offset + piece.start);
}

/**
 * Tells graphs that saved copies of these parameters that the values which the copies were made
 * from change.
 * @param by who changes them, for the error that backward throws
 */
export function markCopies(parameters: Iterable<Tensor>, by: string): void {
  for (const parameter of parameters) {
    if (isCopy(parameter)) {
      const { storage, offset, size } = parameter;
      storage.markOutdated(by, [{ start: offset, length: size }]);
    }
  }
}
