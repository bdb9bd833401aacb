// The shared memory of a job, made once by the program that starts its ranks: a doorbell for each
// rank, and for each ordered pair of ranks a ring of bytes with its two positions. All of it is
// zero at first. What one side writes lies in cache lines (64 bytes) of its own.

import { floorLog2, pow64 } from '@shardweave/dtypes/float64';

/** The words (int32) of a rank's doorbell. */
const BELL_WORDS = 16;

/** The words before a ring's bytes: the writer's cache line and the reader's. */
const RING_HEAD_WORDS = 32;

/** The bytes of all rings of a job together, unless it has very many ranks. */
const TOTAL_RING_BYTES = 32 * 2 ** 20;

/**
 * The largest ring. Half as many bytes take up to 1.4 times the CPU time, which goes into waking;
 * more save nothing (bench/reports/2026-11-21-collectives-thresholds.md).
 */
const MAX_RING_BYTES = 2 ** 20;

/** The smallest ring, which has room for a few small messages and for the description of a call. */
export const MIN_RING_BYTES = 16 * 1024;

/** The words and bytes of one ring. */
export interface RingMemory {
  readonly words: Int32Array;
  readonly bytes: Uint8Array;
}

/** The bytes of each ring, a power of two; the more ranks there are, the smaller it is. */
export function defaultRingBytes(worldSize: number): number {
  const share = TOTAL_RING_BYTES / Math.max(1, worldSize * (worldSize - 1));
  return Math.min(MAX_RING_BYTES, Math.max(MIN_RING_BYTES, pow64(2, floorLog2(share))));
}

export function allocateJobMemory(worldSize: number, ringBytes: number): SharedArrayBuffer {
  const numRings = worldSize * (worldSize - 1);
  return new SharedArrayBuffer(
    4 * BELL_WORDS * worldSize + numRings * (4 * RING_HEAD_WORDS + ringBytes),
  );
}

/** The word on which `rank` sleeps. */
export function bellOf(memory: SharedArrayBuffer, rank: number): Int32Array {
  return new Int32Array(memory, 4 * BELL_WORDS * rank, 1);
}

/** The ring that `from` writes and `to` reads. */
export function ringOf(
  memory: SharedArrayBuffer,
  worldSize: number,
  ringBytes: number,
  { from, to }: { readonly from: number; readonly to: number },
): RingMemory {
  const index = from * (worldSize - 1) + (to < from ? to : to - 1);
  const start = 4 * BELL_WORDS * worldSize + index * (4 * RING_HEAD_WORDS + ringBytes);
  return {
    words: new Int32Array(memory, start, RING_HEAD_WORDS),
    bytes: new Uint8Array(memory, start + 4 * RING_HEAD_WORDS, ringBytes),
  };
}

/** @throws {RangeError} unless a ring may have this many bytes */
export function checkRingBytes(ringBytes: number): void {
  const isPowerOfTwo = ringBytes === pow64(2, floorLog2(ringBytes));
  if (!isPowerOfTwo || ringBytes < MIN_RING_BYTES || ringBytes > 2 ** 30) {
    throw new RangeError(
      `createShmJob: expected ringBytes to be a power of two from ${MIN_RING_BYTES} to 2 ** 30, ` +
        `got ${ringBytes}.`,
    );
  }
}
