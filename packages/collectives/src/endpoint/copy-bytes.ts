// Copies that let the event loop breathe.

import type { Turns } from './turns.js';

/** A slice takes about 0.2 ms: one more than fits in a turn does no harm. */
export const SLICE_BYTES = 2 ** 20;

/**
 * Up to so many bytes are copied at once: a turn of the event loop has time for hundreds of such
 * copies.
 */
export const AT_ONCE_BYTES = 64 * 1024;

/**
 * Copies `source` into `target`, of equal length, in slices. Stops where `isOver` says so: then the
 * rest of `target` is as it was.
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
