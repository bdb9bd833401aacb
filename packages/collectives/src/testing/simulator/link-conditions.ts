// The conditions of a link between two ranks, drawn at random for each: from a bus to a bad radio.

import type { SeededRandom } from './seeded-random.js';

export interface LinkConditions {
  /**
   * The time that one chunk or control message takes, drawn anew for each. Arrivals stay in order.
   */
  delayMs(): number;
  readonly bytesPerMs: number;
  /** Payload travels in chunks of 1 to this many bytes. */
  readonly maxChunkBytes: number;
  /**
   * The bytes that the link takes before any has arrived; a payload that fits may be changed as
   * soon as it is sent.
   */
  readonly windowBytes: number;
  /** Whether chunks of several messages may alternate, once those have begun. */
  readonly isInterleaving: boolean;
}

/** Draws the conditions of a link; `scaleMs` is the delay of a typical link of this network. */
export function randomConditions(random: SeededRandom, scaleMs: number): LinkConditions {
  // One link in eight is a straggler.
  const meanMs = scaleMs * (random.chance(1 / 8) ? random.between(5, 50) : random.between(0.2, 2));
  return {
    delayMs: random.pick([
      () => meanMs,
      () => random.between(0, 2 * meanMs),
      () => random.exponential(meanMs),
      () => (random.chance(0.05) ? 20 * meanMs : 0.1 * meanMs),
    ]),
    bytesPerMs: random.chance(0.5) ? Infinity : random.pick([500, 5000, 50_000]),
    maxChunkBytes: random.pick([3, 400, 4096, 65_536]) * 2,
    windowBytes: random.pick([1, 1000, 30_000, Infinity]),
    isInterleaving: random.chance(0.3),
  };
}
