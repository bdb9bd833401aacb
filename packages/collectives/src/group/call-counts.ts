// Counts what a group has called and moved, for `stats`.

import type { OperationName } from '../call-signature.js';
import type { Call } from '../endpoint/call.js';
import type { CollectiveStats } from './process-group.js';

type Counter = keyof Omit<CollectiveStats, 'bytesSent' | 'bytesReceived'>;

const COUNTERS: Readonly<Record<OperationName, Counter | null>> = {
  allGather: 'allGathers',
  reduceScatter: 'reduceScatters',
  allReduce: 'allReduces',
  broadcast: 'broadcasts',
  gather: 'gathers',
  send: 'sends',
  recv: 'recvs',
  barrier: 'barriers',
  split: null,
};

export class CallCounts {
  readonly #stats: { -readonly [K in keyof CollectiveStats]: number } = {
    allGathers: 0,
    reduceScatters: 0,
    allReduces: 0,
    broadcasts: 0,
    gathers: 0,
    sends: 0,
    recvs: 0,
    barriers: 0,
    bytesSent: 0,
    bytesReceived: 0,
  };

  /** Counts a call that has succeeded. */
  add(operation: OperationName, { bytesSent, bytesReceived }: Call): void {
    const counter = COUNTERS[operation];
    if (counter !== null) {
      this.#stats[counter]++;
      this.#stats.bytesSent += bytesSent;
      this.#stats.bytesReceived += bytesReceived;
    }
  }

  /** A copy of the present counts. */
  read(): CollectiveStats {
    return { ...this.#stats };
  }
}
