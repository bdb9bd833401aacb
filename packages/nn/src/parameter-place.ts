// What a parameter's piece tells of where its values and gradient are: here and whole, here in
// part, or here as a copy of what rests elsewhere.

import type { Tensor } from '@shardweave/tensor-core';
import { flatHomeOf } from './flat/homes/flat-home.js';

/**
 * Whether other devices have parts of the flat parameter that it belongs to. Its own elements may
 * all be here: what is computed from them is still one rank's alone.
 */
export function isSharded({ piece, size }: Tensor): boolean {
  return piece !== undefined && ((piece.numShards ?? 1) > 1 || piece.length !== size);
}

/**
 * Whether backward has left it a gradient: its own, or in its flat, on the device or in the flat's
 * home.
 */
export function hasGradient(parameter: Tensor): boolean {
  const { gradSink, piece } = parameter;
  if (gradSink?.hasGradient !== undefined && piece !== undefined) {
    return gradSink.hasGradient(parameter);
  }
  return hasFlatGradient(piece?.flat ?? parameter);
}

/** The same of a whole flat, whoever's part of it. */
export function hasFlatGradient(flat: Tensor): boolean {
  return flat.grad !== undefined || flatHomeOf(flat)?.hasGradient === true;
}

/**
 * Whether its storage holds a copy, filled around its use, of values that rest in a shard or a
 * store. A packed parameter is a view of its flat, and so is one that a single rank shards in f32.
 */
export function isCopy({ piece, storage }: Tensor): boolean {
  return piece !== undefined && storage !== piece.flat.storage;
}
