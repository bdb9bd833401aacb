// What one root shares with every instance below it: the schedule, the links, the current backward.

import { byteSize } from '@shardweave/dtypes';
import { UnitScheduler } from '@shardweave/nn';
import type { DType, Pass } from '@shardweave/tensor-core';
import type { FullyShardedDataParallel } from './fully-sharded-data-parallel.js';
import { ReduceScatterBucketer } from './reduce-scatter-bucketer.js';
import type { GatherTicket, ShardedUnit } from './sharded-unit.js';
import type { UnitLinks } from './unit-links.js';

export class FsdpTree {
  readonly root: FullyShardedDataParallel;
  /** Root first, then as the modules nest. */
  readonly instances: readonly FullyShardedDataParallel[];
  readonly scheduler: UnitScheduler<FullyShardedDataParallel, readonly GatherTicket[]>;
  readonly bucketer: ReduceScatterBucketer;
  /** False inside noSync: gradients add up unsharded. */
  isSyncing = true;
  #pass: Pass | undefined;

  constructor(
    root: FullyShardedDataParallel,
    instances: readonly FullyShardedDataParallel[],
    options: { readonly gatherCapBytes: number; readonly bucketCapBytes: number },
  ) {
    this.root = root;
    this.instances = instances;
    // An instance's units come and go together.
    this.scheduler = new UnitScheduler(
      {
        bytes: ({ units }) => units.reduce((sum, unit) => sum + unit.fullBytes, 0),
        isPresent: ({ units }) => units.every((unit) => unit.isPresent),
        start: ({ units }) => units.map((unit) => unit.startGather()),
        finish: async ({ units }, tickets) => {
          for (const [index, unit] of units.entries()) await unit.finishGather(tickets[index]!);
        },
        drop: (instance) => instance.drop(),
      },
      { capBytes: options.gatherCapBytes },
    );
    this.bucketer = new ReduceScatterBucketer({
      capBytes: options.bucketCapBytes,
      mostBytes: (links, dtype) => this.#gradientBytes(links, dtype),
      identity: (names) => names.join(' + '),
    });
  }

  get units(): ShardedUnit[] {
    return this.instances.flatMap(({ units }) => units);
  }

  /** Whether a backward through this tree is under way. */
  get isInBackward(): boolean {
    return this.#pass !== undefined;
  }

  /** The root's forward begins: every rank queues what its gathers start from, in one go. */
  beginForward(): void {
    this.scheduler.beginForward();
    for (const unit of this.units) {
      // What rests on the host is read when its gather starts.
      const isPublished = unit.layout.worldSize > 1 && !unit.home?.holdsState;
      if (isPublished && !unit.isPresent) void unit.publish();
    }
  }

  /** Once per backward, whichever instance it reaches first. */
  beginPass(pass: Pass): void {
    if (this.#pass === pass) return;
    this.#pass = pass;
    this.scheduler.beginBackward();
    pass.onEnd(() => this.#endPass());
    pass.onFailure(() => this.reset());
  }

  /**
   * Back to rest after a failure. Shards are intact; after a failed backward the gradients that it
   * added to are not, and those of noSync are dropped.
   */
  reset(): void {
    const wasInBackward = this.isInBackward;
    this.#pass = undefined;
    this.scheduler.reset();
    this.bucketer.reset();
    for (const unit of this.units) {
      if (wasInBackward) unit.gradient.reset();
      unit.drop();
    }
    for (const instance of this.instances) instance.becomeIdle();
  }

  /** Of all units that are reduced over the ranks of `links` in `dtype`. */
  #gradientBytes(links: UnitLinks, dtype: DType): number {
    return this.units
      .filter((unit) => unit.gradient.isReducedWith(links, dtype) && !unit.isAllFrozen)
      .reduce((sum, unit) => sum + unit.fullElements * byteSize(dtype), 0);
  }

  async #endPass(): Promise<void> {
    if (this.isSyncing) {
      for (const unit of this.units) unit.gradient.startReduce(this.bucketer);
      await this.bucketer.finish();
      for (const unit of this.units) await unit.gradient.finish();
    }
    await this.scheduler.settle();
    for (const instance of this.instances) {
      if (this.isSyncing || instance.isResharding) instance.drop();
      instance.becomeIdle();
    }
    this.#pass = undefined;
  }
}
