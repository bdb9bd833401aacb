// Cuts whole buffers into pieces. MPI moves a piece at a time, so that no call to it holds the
// event loop for long, progress shows, and counts stay far below the 2 GiB of MPI's int.

import { type PartLayout, partBytes } from '../../algorithms/part-layout.js';
import type { Counts } from './mpi-library.js';

/**
 * The bytes of each rank's part in a piece, which MPI copies in under a millisecond. Pieces of 1
 * and of 4 MiB took as long for 16 MiB.
 */
const PIECE_BYTES = 2 * 2 ** 20;

/** The largest buffer, because MPI's offsets within a buffer are ints. */
export const MAX_BUFFER_BYTES = 2 ** 31 - 1;

export function numPieces(byteLength: number): number {
  return Math.ceil(byteLength / PIECE_BYTES);
}

/** The bytes of the longest part. */
export function longestPart(layout: PartLayout): number {
  let longest = 0;
  for (let rank = 0; rank + 1 < layout.offsets.length; rank++) {
    longest = Math.max(longest, partBytes(layout, rank));
  }
  return longest;
}

/** A piece of a buffer, or of a part of one; empty after its end. */
export function pieceOf(bytes: Uint8Array, piece: number): Uint8Array {
  return bytes.subarray(piece * PIECE_BYTES, (piece + 1) * PIECE_BYTES);
}

/** The bytes of a part's piece. */
export function pieceBytes(partLength: number, piece: number): number {
  return Math.max(0, Math.min(PIECE_BYTES, partLength - piece * PIECE_BYTES));
}

/** The same piece of every rank's part; `places[rank]` is the rank's index in the communicator. */
export function pieceOfAll(
  layout: PartLayout,
  piece: number,
  places: readonly number[],
): { readonly counts: Counts; readonly offsets: Counts } {
  const counts = new Int32Array(places.length);
  const offsets = new Int32Array(places.length);
  places.forEach((place, rank) => {
    const count = pieceBytes(partBytes(layout, rank), piece);
    counts[place] = count;
    // An offset past a short part's end could leave the buffer, and MPI may look there.
    offsets[place] = count === 0 ? 0 : layout.offsets[rank]! + piece * PIECE_BYTES;
  });
  return { counts, offsets };
}
