// How long a rank takes for a group of rows, and how many groups ranks of different speeds get.

/** The groups of which the median is taken. */
const NUM_GROUPS = 15;

/** The time of a group on this rank, by the last ones. */
export class GroupSpeed {
  readonly #times: number[] = [];

  /** Notes the milliseconds of a group; undefined: not known. */
  note(ms: number | undefined): void {
    this.#times.push(...(ms === undefined ? [] : [ms]));
    this.#times.splice(0, this.#times.length - NUM_GROUPS);
  }

  /** In milliseconds, to three digits; undefined before the first one. */
  get groupMs(): number | undefined {
    const sorted = this.#times.toSorted((a, b) => a - b);
    const median = sorted[sorted.length >> 1];
    return median === undefined ? undefined : Number(median.toPrecision(3));
  }
}

/**
 * Deals groups to ranks so that the slowest of them ends as soon as can be: 8 to ranks that take
 * 10, 10 and 30 ms for one are 4, 3, 1. Each gets one at least, or its speed would never be known.
 * @param groupMs by rank, the time of a group; who has no time yet counts as the others' mean
 */
export function dealBySpeed(groups: number, groupMs: readonly (number | undefined)[]): number[] {
  const known = groupMs.filter((ms) => ms !== undefined);
  const mean = known.reduce((sum, ms) => sum + ms, 0) / known.length;
  const times = groupMs.map((ms) => (known.length === 0 ? 1 : (ms ?? mean)));
  const counts: number[] = groupMs.map((_, rank) => (rank < groups ? 1 : 0));
  for (let left = groups - counts.reduce((sum, count) => sum + count, 0); left > 0; left--) {
    const ends = times.map((ms, rank) => (counts[rank]! + 1) * ms);
    counts[ends.indexOf(Math.min(...ends))]! += 1;
  }
  return counts;
}
