// What a parameter's piece tells of where its values and gradient are: here and whole, here in part,
// or here as a copy of what rests elsewhere.

import type { Tensor } from '@shardweave/tensor-core';

/**
 * Whether other devices have parts of the flat parameter that it belongs to. Its own elements may
 * all be here: what is computed from them is still one rank's alone.
 */
export function isSharded({ piece, size }: Tensor): boolean {
  return piece !== undefined && ((piece.numShards ?? 1) > 1 || piece.length !== size);
}

/**
 * Whether its storage holds a copy, filled around its use, of values that rest in a shard or a store.
 * A packed parameter is a view of its flat, and so is one that a single rank shards in f32.
 */
export function isCopy({ piece, storage }: Tensor): boolean {
  return piece !== undefined && storage !== piece.flat.storage;
}
