// The ranks that hold an instance's parameters, and this rank's place among them.

import type { ProcessGroup } from '@shardweave/collectives';

export type ReduceGroup = 'default' | 'reduceScatter' | ProcessGroup;

export class RankGroups {
  readonly processGroup: ProcessGroup;
  /**
   * 'default': processGroup itself; 'reduceScatter': a second sequence that is split off it once.
   */
  readonly processGroupReduceScatter: ReduceGroup;
  readonly replicateGroup: ProcessGroup | undefined;

  constructor(options: {
    readonly processGroup: ProcessGroup;
    readonly processGroupReduceScatter?: ReduceGroup;
    readonly replicateGroup?: ProcessGroup;
  }) {
    this.processGroup = options.processGroup;
    this.processGroupReduceScatter = options.processGroupReduceScatter ?? 'reduceScatter';
    this.replicateGroup = options.replicateGroup;
  }

  /** The number of ranks that hold the parameters, in shards or as replicas of them. */
  get numRanks(): number {
    return this.processGroup.worldSize * (this.replicateGroup?.worldSize ?? 1);
  }

  /**
   * Whether this rank belongs to the first replica, which is the only one without replicateGroup.
   */
  get isFirstReplica(): boolean {
    return (this.replicateGroup?.rank ?? 0) === 0;
  }

  /** This rank's place among all ranks that share a batch: by replica, then by shard. */
  get batchRank(): number {
    const replica = this.replicateGroup?.rank ?? 0;
    return replica * this.processGroup.worldSize + this.processGroup.rank;
  }

  /** Whether this is rank 0 of the first replica. */
  get isFirstRank(): boolean {
    return this.processGroup.rank === 0 && this.isFirstReplica;
  }
}
