// How a buffer is divided among ranks: byte offsets of consecutive parts, even or not; and a part
// into segments, so that what is sent, summed and passed on overlap.

/**
 * Rank r's part goes from `offsets[r]` to `offsets[r + 1]`: parts of 2, 2 and 1 bytes have the
 * offsets 0, 2, 4, 5.
 */
export interface PartLayout {
  readonly offsets: readonly number[];
}

/** `worldSize` parts of `partBytes` each. */
export function evenParts(worldSize: number, partBytes: number): PartLayout {
  const offsets = [0]; // in a loop: of every small call it is a noticeable part
  for (let rank = 1; rank <= worldSize; rank++) {
    offsets.push(rank * partBytes);
  }
  return { offsets };
}

/** Parts of whole elements, which differ by one element at most: 9 over 4 ranks is 2, 2, 2, 3. */
export function balancedParts(
  worldSize: number,
  byteLength: number,
  elementBytes: number,
): PartLayout {
  const count = byteLength / elementBytes;
  return {
    offsets: Array.from(
      { length: worldSize + 1 },
      (_, r) => Math.floor((r * count) / worldSize) * elementBytes,
    ),
  };
}

/** Parts of `counts[r]` elements each. */
export function countedParts(counts: readonly number[], elementBytes: number): PartLayout {
  const offsets = [0];
  for (const count of counts) {
    offsets.push(offsets.at(-1)! + count * elementBytes);
  }
  return { offsets };
}

/** Rank r's part, as a view. */
export function partOf(bytes: Uint8Array, layout: PartLayout, rank: number): Uint8Array {
  return bytes.subarray(layout.offsets[rank], layout.offsets[rank + 1]);
}

/** Bytes of rank r's part. */
export function partBytes(layout: PartLayout, rank: number): number {
  return layout.offsets[rank + 1]! - layout.offsets[rank]!;
}

/**
 * A segment is so large that a message's own cost vanishes: half of it takes an eighth to a third
 * more CPU time, twice of it saves little and delays the first sum
 * (bench/reports/2026-11-21-collectives-thresholds.md).
 */
const MAX_SEGMENT_BYTES = 2 ** 20;

/** All peers' segments of one round together are about this large: it bounds what a rank holds. */
const ROUND_BYTES = 4 * 2 ** 20;

/**
 * No segment is smaller, though 128 ranks would make it so: a message should still carry something.
 */
const MIN_SEGMENT_BYTES = 64 * 1024;

/** Two phases for each of so many segments fit MessageHeader.phase. */
const MAX_ROUNDS = 2 ** 14;

/** Multiples of this are whole elements of every dtype, and whole vectors. */
const GRAIN_BYTES = 64;

/**
 * Every part is cut into segments of `segmentBytes`, whose last one is shorter; short parts have
 * empty ones.
 */
export interface SegmentPlan {
  readonly segmentBytes: number;
  /** How many rounds the longest part takes; at least 1. */
  readonly numRounds: number;
}

/**
 * Plans segments alike on all ranks, since it goes by the layout alone. Each half of an operation
 * has `phasesPerRound`.
 */
export function planSegments(layout: PartLayout, phasesPerRound = 1): SegmentPlan {
  const numParts = layout.offsets.length - 1;
  let longest = 0;
  for (let rank = 0; rank < numParts; rank++) {
    longest = Math.max(longest, partBytes(layout, rank));
  }
  const fair = ROUND_BYTES / Math.max(1, numParts - 1);
  const wanted = Math.max(MIN_SEGMENT_BYTES, Math.min(MAX_SEGMENT_BYTES, fair));
  const least = Math.max(wanted, (longest * phasesPerRound) / MAX_ROUNDS);
  const segmentBytes = Math.ceil(least / GRAIN_BYTES) * GRAIN_BYTES;
  return { segmentBytes, numRounds: Math.max(1, Math.ceil(longest / segmentBytes)) };
}

/** A part's segment of a round, as a view; empty behind the part's end. */
export function segmentOf(part: Uint8Array, plan: SegmentPlan, round: number): Uint8Array {
  return part.subarray(round * plan.segmentBytes, (round + 1) * plan.segmentBytes);
}
