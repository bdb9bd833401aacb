// Adds up what a rank's process groups have moved, for the step line and the summary.

import type { ProcessGroup } from '@shardweave/collectives';

export interface CommCounts {
  /** Payload. */
  readonly bytesSent: number;
  readonly bytesReceived: number;
  readonly allGathers: number;
  readonly reduceScatters: number;
  readonly allReduces: number;
}

const NAMES = ['bytesSent', 'bytesReceived', 'allGathers', 'reduceScatters', 'allReduces'] as const;

/** Counts of `groups` together since it was made. */
export class CommCounter {
  readonly #groups: readonly ProcessGroup[];
  readonly #start: CommCounts;

  constructor(groups: readonly ProcessGroup[]) {
    this.#groups = groups;
    this.#start = this.#sum();
  }

  counts(): CommCounts {
    const now = this.#sum();
    return Object.fromEntries(
      NAMES.map((name) => [name, now[name] - this.#start[name]]),
    ) as unknown as CommCounts;
  }

  #sum(): CommCounts {
    const stats = this.#groups.map((group) => group.stats());
    return Object.fromEntries(
      NAMES.map((name) => [name, stats.reduce((sum, one) => sum + one[name], 0)]),
    ) as unknown as CommCounts;
  }
}
