// Moves the values of parameters into the flat that takes them over.

import { byteSize, Tensor } from '@shardweave/tensor-core';
import { drawInto, recipeOf } from '../parameters/deferred-parameter.js';
import { encodingOf, isEncodedElsewhere, readEncoded } from '../parameters/encoded-parameter.js';
import { type FlatLayout, type FlatPlace, pieceIn } from './layout/flat-layout.js';

/**
 * The most bytes of values that are on the host at once while a flat is filled. The number is not
 * measured.
 */
const PART_BYTES = 4 * 2 ** 20;

/** Cuts a flat into parts that are small enough for the host. */
export function* partsOf({ size, dtype }: Tensor): Generator<FlatPlace> {
  const most = PART_BYTES / byteSize(dtype);
  for (let start = 0; start < size; start += most) {
    yield { start, length: Math.min(most, size - start) };
  }
}

/** A run of the whole that these leaves make in this layout. */
export interface LeafRun extends FlatPlace {
  readonly leaves: readonly Tensor[];
  readonly layout: FlatLayout;
  /** Zeros stand for values that are yet to be loaded. Default: an error. */
  readonly isToBeLoaded?: boolean;
}

/** Whether a leaf has its values here, or what makes them; else they are yet to be loaded. */
export function hasValues(leaf: Tensor): boolean {
  const { size, storage } = leaf;
  return size === 0 || storage.isFilled || recipeOf(leaf) !== undefined || isEncodedElsewhere(leaf);
}

/**
 * Queues kernels that fill `into` with a run of the leaves, in the dtype of `into`, and the pads
 * with zeros. Deferred leaves are drawn right there.
 */
export function drawLeaves(into: Tensor, options: LeafRun): void {
  const { leaves, layout, isToBeLoaded = false, ...run } = options;
  const { device } = into;
  const part = (start: number, length: number) =>
    new Tensor(into.storage, [length], into.offset + start);
  const pieces = leaves
    .map((leaf, index) => ({ leaf, ...pieceIn(layout, index, run) }))
    .filter(({ length }) => length > 0);
  let end = 0;
  for (const { start, length } of [...pieces, { start: into.size, length: 0 }]) {
    if (start > end) {
      // The fill begins at a whole word and so may cover the last element of an odd number of
      // 16-bit ones. That leaf is written afterwards and gets it back.
      const from = end - (end % 2);
      device.run('fill', { out: part(from, start - from).view(), value: 0 });
    }
    end = start + length;
  }
  for (const { leaf, start, length, first } of pieces) {
    const recipe = recipeOf(leaf);
    const out = part(start, length);
    if (isToBeLoaded && !hasValues(leaf)) {
      device.run('fill', { out: out.view(), value: 0 });
    } else if (recipe === undefined) {
      const x = leaf.storage.view(leaf.offset + first, length);
      device.run('cast', { x, out: out.view() });
    } else {
      drawInto(recipe, out, first);
    }
  }
}

/**
 * Fills `into` with the bytes of a run of the leaves as they rest, and the pads with zeros. Values
 * pass through as many bytes of temporary memory on the device. Encoded ones are read from their
 * source.
 */
export async function readLeaves(into: Uint8Array, run: LeafRun): Promise<void> {
  const { leaves, layout, length } = run;
  const [first] = leaves;
  if (first === undefined || length === 0) {
    return;
  }
  if (encodingOf(first) !== undefined) {
    into.fill(0);
    for (const [index, leaf] of leaves.entries()) {
      const piece = pieceIn(layout, index, run);
      if (piece.length > 0) {
        const words = await readEncoded(leaf, { start: piece.first, length: piece.length });
        into.set(words, piece.start * 4);
      }
    }
    return;
  }
  const storage = first.device.storage(length, first.dtype, 'staging');
  try {
    storage.fill();
    drawLeaves(new Tensor(storage, [length]), run);
    // A reader reads them in place. Nothing else writes to this storage.
    const reader = storage.openReader();
    await reader.read(0, into.byteLength, into).finally(() => reader.close());
  } finally {
    storage.release();
  }
}
