// The values of parameters that no flat has taken over yet, as host bytes.

import { byteSize, type Tensor } from '@shardweave/tensor-core';
import { recipeOf } from '../deferred-parameter.js';
import { type FlatLayout, type FlatPlace, pieceIn } from './flat-layout.js';

/**
 * A run of the whole that a layout makes of leaves of one dtype; zeros in pads. What is deferred is made
 * here.
 */
export async function readLeaves(
  leaves: readonly Tensor[],
  layout: FlatLayout,
  run: FlatPlace,
): Promise<Uint8Array> {
  const elementBytes = byteSize(leaves[0]!.dtype);
  const bytes = new Uint8Array(run.length * elementBytes);
  for (const [index, leaf] of leaves.entries()) {
    const { start, length, first } = pieceIn(layout, index, run);
    if (length > 0) {
      bytes.set(await readLeaf(leaf, { start: first, length }), start * elementBytes);
    }
  }
  return bytes;
}

/** Bytes of a run of a leaf's elements, from the device or from its recipe. */
async function readLeaf(tensor: Tensor, { start, length }: FlatPlace): Promise<Uint8Array> {
  const recipe = recipeOf(tensor);
  if (recipe !== undefined) {
    const values = new Float32Array(length);
    recipe.write(values, start);
    return new Uint8Array(values.buffer);
  }
  const elementBytes = byteSize(tensor.dtype);
  const from = (tensor.offset + start) * elementBytes;
  const byteLength = length * elementBytes;
  const lead = from % 4; // devices read whole words
  const words = Math.ceil((lead + byteLength) / 4) * 4;
  return (await tensor.storage.read(from - lead, words)).subarray(lead, lead + byteLength);
}
