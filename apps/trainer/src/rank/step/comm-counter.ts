// Adds up what a rank's process groups have moved, for the step line and the summary.

import type { ProcessGroup } from '@shardweave/collectives';

export interface CommCounts {
  /** The bytes of payload. */
  readonly bytesSent: number;
  readonly bytesReceived: number;
  readonly allGathers: number;
  readonly reduceScatters: number;
  readonly allReduces: number;
}

const NAMES = ['bytesSent', 'bytesReceived', 'allGathers', 'reduceScatters', 'allReduces'] as const;

/** The counts of `groups` together since this counter was made. */
export class CommCounter {
  readonly #groups: readonly ProcessGroup[];
  #start: CommCounts;

  constructor(groups: readonly ProcessGroup[]) {
    this.#groups = groups;
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
    return Object.fromEntries(
      NAMES.map((name) => [name, stats.reduce((sum, counts) => sum + counts[name], 0)]),
    ) as unknown as CommCounts;
  }
}

function difference(a: CommCounts, b: CommCounts): CommCounts {
  return Object.fromEntries(
    NAMES.map((name) => [name, a[name] - b[name]]),
  ) as unknown as CommCounts;
}
