// The stores that a run opens, and what they take of the host and the disk.

import type { ShardStore } from '@shardweave/shard-store';
import type { StoreBytes } from '../events.js';
import type { OpenStore } from '../strategies/strategy.js';

export class OpenedStores {
  readonly onHost: ShardStore[] = [];
  readonly onDisk: ShardStore[] = [];

  /** Opens stores by `open`, and keeps them. */
  opening(open: OpenStore): OpenStore {
    return async (directory) => {
      const store = await open(directory);
      (directory === undefined ? this.onHost : this.onDisk).push(store);
      return store;
    };
  }

  bytes(): StoreBytes {
    const sum = (stores: readonly ShardStore[]) =>
      stores.reduce((bytes, { peakBytes }) => bytes + peakBytes, 0);
    return { hostBytes: sum(this.onHost), diskBytes: sum(this.onDisk) };
  }
}
