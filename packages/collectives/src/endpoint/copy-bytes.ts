// Copies bytes in slices between which the event loop gets its turn.

import type { Turns } from './turns.js';

/** The bytes of a slice, which takes about 0.2 ms: one more than fits in a turn does no harm. */
export const SLICE_BYTES = 2 ** 20;

/**
 * Up to this many bytes are copied at once: a turn of the event loop has time for hundreds of such
 * copies.
 */
export const AT_ONCE_BYTES = 64 * 1024;

/**
 * Copies `source` into `target`, which has the same length, in slices. Stops where `isOver` returns
 * true, and leaves the rest of `target` as it was.
 */
export async function copyBytes(
  target: Uint8Array,
  source: Uint8Array,
  turns: Turns,
  isOver: () => boolean = () => false,
): Promise<void> {
  for (let at = 0; at < source.byteLength; at += SLICE_BYTES) {
    if (source.byteLength > AT_ONCE_BYTES && turns.next() !== undefined) {
      await turns.wait();
    }
    if (isOver()) {
      return;
    }
    target.set(source.subarray(at, at + SLICE_BYTES), at);
  }
}
