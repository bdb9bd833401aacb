// How a buffer is divided among ranks: the byte offsets of consecutive parts, even or uneven; and
// how a part is divided into segments, so that sending, summing and passing on overlap.

/**
 * Rank r's part goes from `offsets[r]` to `offsets[r + 1]`: parts of 2, 2 and 1 bytes have the
 * offsets 0, 2, 4, 5.
 */
export interface PartLayout {
  readonly offsets: readonly number[];
}

/** Makes `worldSize` parts of `partBytes` bytes each. */
export function evenParts(worldSize: number, partBytes: number): PartLayout {
  const offsets = [0]; // in a loop: of every small call it is a noticeable part
  for (let rank = 1; rank <= worldSize; rank++) {
    offsets.push(rank * partBytes);
  }
  return { offsets };
}

/**
 * Makes parts of whole elements whose sizes differ by at most one element: 9 over 4 ranks is 2, 2,
 * 2, 3.
 */
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

/** Makes parts of `counts[r]` elements each. */
export function countedParts(counts: readonly number[], elementBytes: number): PartLayout {
  const offsets = [0];
  for (const count of counts) {
    offsets.push(offsets.at(-1)! + count * elementBytes);
  }
  return { offsets };
}

/** The part of a rank, as a view. */
export function partOf(bytes: Uint8Array, layout: PartLayout, rank: number): Uint8Array {
  return bytes.subarray(layout.offsets[rank], layout.offsets[rank + 1]);
}

/** The number of bytes of a rank's part. */
export function partBytes(layout: PartLayout, rank: number): number {
  return layout.offsets[rank + 1]! - layout.offsets[rank]!;
}

/**
 * The largest segment: at this size a message's own cost hardly shows. Half of it takes an eighth
 * to a third more CPU time; twice of it saves little and delays the first sum
 * (bench/reports/2026-11-21-collectives-thresholds.md).
 */
const MAX_SEGMENT_BYTES = 2 ** 20;

/** The size of all peers' segments of one round together, about, which bounds what a rank holds. */
const ROUND_BYTES = 4 * 2 ** 20;

/**
 * The smallest segment, even where 128 ranks would make it smaller: a message should carry
 * something.
 */
const MIN_SEGMENT_BYTES = 64 * 1024;

/** The most rounds: two phases for each of them fit MessageHeader.phase. */
const MAX_ROUNDS = 2 ** 14;

/** A multiple of this is a whole number of elements of every dtype, and of whole vectors. */
const GRAIN_BYTES = 64;

/**
 * The cut of every part into segments of `segmentBytes`, of which the last one is shorter. A short
 * part has empty segments.
 */
export interface SegmentPlan {
  readonly segmentBytes: number;
  /** The number of rounds that the longest part takes; at least 1. */
  readonly numRounds: number;
}

/**
 * Plans segments in the same way on all ranks, because only the layout decides. Each half of an
 * operation has `phasesPerRound` phases in a round.
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

/** A part's segment in a round, as a view; empty after the part's end. */
export function segmentOf(part: Uint8Array, plan: SegmentPlan, round: number): Uint8Array {
  return part.subarray(round * plan.segmentBytes, (round + 1) * plan.segmentBytes);
}
