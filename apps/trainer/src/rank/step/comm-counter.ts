// Adds up what a rank's process groups have moved, for the step line and the summary.

import type { ProcessGroup } from '@shardweave/collectives';
import type { RankGroups } from '../strategies/strategy.js';

const NAMES = ['bytesSent', 'bytesReceived', 'allGathers', 'reduceScatters', 'allReduces'] as const;

/** The bytes of payload that a rank has moved, and how often it called each collective. */
export type CommCounts = Readonly<Record<(typeof NAMES)[number], number>>;

/** The counts that `of` gives by their names. */
export function commCounts(of: (name: keyof CommCounts) => number): CommCounts {
  return Object.fromEntries(NAMES.map((name) => [name, of(name)])) as CommCounts;
}

/** The counts of a rank's groups together since this counter was made. */
export class CommCounter {
  readonly #groups: readonly ProcessGroup[];
  #start: CommCounts;

  constructor({ gather, reduce }: RankGroups) {
    this.#groups = [...new Set([gather, reduce])];
    this.#start = this.#sum();
  }

  counts(): CommCounts {
    return difference(this.#sum(), this.#start);
  }

  /** Runs `run` without counting what it moves. */
  async pause<T>(run: () => Promise<T>): Promise<T> {
    const counted = this.counts();
    const result = await run();
    this.#start = difference(this.#sum(), counted);
    return result;
  }

  #sum(): CommCounts {
    const stats = this.#groups.map((group) => group.stats());
    return commCounts((name) => stats.reduce((sum, counts) => sum + counts[name], 0));
  }
}

function difference(a: CommCounts, b: CommCounts): CommCounts {
  return commCounts((name) => a[name] - b[name]);
}
