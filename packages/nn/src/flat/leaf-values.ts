// The values of parameters on their way into the flat that takes them over.

import { byteSize, type Tensor } from '@shardweave/tensor-core';
import { recipeOf } from './deferred-parameter.js';
import { encodingOf, readEncoded } from './encoded-parameter.js';
import { type FlatLayout, type FlatPlace, pieceIn } from './flat-layout.js';

/** Bytes of values that are on the host at once while a flat is filled. Not measured. */
const PART_BYTES = 4 * 2 ** 20;

/** A flat, cut so that the host has little of it at once. */
export function* partsOf({ size, dtype }: Tensor): Generator<FlatPlace> {
  const most = PART_BYTES / byteSize(dtype);
  for (let start = 0; start < size; start += most) {
    yield { start, length: Math.min(most, size - start) };
  }
}

/** Fills a flat from leaves on the same device, zeros in pads. */
export function copyLeaves(leaves: readonly Tensor[], flat: Tensor): void {
  const { backend } = flat.device;
  if (flat.size > 0) {
    backend.run('fill', { out: flat.view(), value: 0 });
  }
  for (const leaf of leaves) {
    const { start, length, first } = leaf.piece!;
    if (length > 0) {
      const x = leaf.storage.view(leaf.offset + first!, length);
      backend.run('cast', { x, out: flat.storage.view(start, length) });
    }
  }
}

/**
 * A run of the whole that a layout makes of leaves of one dtype, as it rests; zeros in pads. What is
 * deferred is made here.
 */
export async function readLeaves(
  leaves: readonly Tensor[],
  layout: FlatLayout,
  { elementBytes, ...run }: FlatPlace & { readonly elementBytes: number },
): Promise<Uint8Array> {
  const bytes = new Uint8Array(run.length * elementBytes);
  for (const [index, leaf] of leaves.entries()) {
    const { start, length, first } = pieceIn(layout, index, run);
    const recipe = recipeOf(leaf);
    if (length > 0 && recipe !== undefined) {
      recipe.write(new Float32Array(bytes.buffer, start * elementBytes, length), first);
    } else if (length > 0) {
      bytes.set(await readLeaf(leaf, { start: first, length }), start * elementBytes);
    }
  }
  return bytes;
}

/** Bytes of a run of a leaf's elements or words, from where they are. */
async function readLeaf(tensor: Tensor, { start, length }: FlatPlace): Promise<Uint8Array> {
  if (encodingOf(tensor) !== undefined) {
    return readEncoded(tensor, { start, length });
  }
  const elementBytes = byteSize(tensor.dtype);
  const from = (tensor.offset + start) * elementBytes;
  const byteLength = length * elementBytes;
  const lead = from % 4; // devices read whole words
  const words = Math.ceil((lead + byteLength) / 4) * 4;
  return (await tensor.storage.read(from - lead, words)).subarray(lead, lead + byteLength);
}
