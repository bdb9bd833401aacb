// Copies that let the event loop breathe.

import type { Turns } from './turns.js';

/** About 0.2 ms: a slice more than a turn's time does no harm. */
export const SLICE_BYTES = 2 ** 20;

/** Copied at once: a turn of the event loop has time for hundreds of them. */
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
