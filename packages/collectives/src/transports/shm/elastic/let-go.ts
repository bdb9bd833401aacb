// Makes an engine collect what is left of a block of shared memory. A block is freed when every
// thread that had it has collected its garbage, and engines count no shared memory when they decide
// on that: threads that compute in WebAssembly might keep the blocks of many epochs.

import type { ShmRankHandle } from '../shm-job.js';

/** The most bytes that are told; V8 hurries no more for more. */
const MOST_BYTES = 256 * 2 ** 20;

/**
 * Tells the engine of a block to which this thread has no reference any more, by an ordinary buffer
 * of its size: that one is counted, and takes no memory, as nobody touches it.
 */
export function letGo({ memory, heap }: ShmRankHandle): void {
  heap?.grow(0); // another thread has grown it, and this one has not looked since
  const byteLength = memory.byteLength + (heap?.buffer.byteLength ?? 0);
  try {
    void new ArrayBuffer(Math.min(byteLength, MOST_BYTES));
  } catch {
    // There is no room for it, which the engine has noticed by then.
  }
}
