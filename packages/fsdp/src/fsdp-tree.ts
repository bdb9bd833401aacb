// What one root shares with every instance below it: the schedule, the links, the current backward.

import type { ProcessGroup } from '@shardweave/collectives';
import { UnitScheduler } from '@shardweave/nn';
import type { Pass } from '@shardweave/tensor-core';
import type { FullyShardedDataParallel } from './fully-sharded-data-parallel.js';
import { HostBuffers } from './host-buffers.js';
import type { GatherTicket, ShardedUnit, UnitLinks } from './sharded-unit.js';
import { StartOrder } from './start-order.js';

export class FsdpTree {
  readonly root: FullyShardedDataParallel;
  /** Root first, then as the modules nest. */
  readonly instances: readonly FullyShardedDataParallel[];
  readonly scheduler: UnitScheduler<ShardedUnit, GatherTicket>;
  /** False inside noSync: gradients add up unsharded. */
  isSyncing = true;
  #pass: Pass | undefined;

  constructor(
    root: FullyShardedDataParallel,
    instances: readonly FullyShardedDataParallel[],
    options: { readonly reduceGroup: ProcessGroup; readonly gatherCapBytes: number },
  ) {
    this.root = root;
    this.instances = instances;
    this.scheduler = new UnitScheduler<ShardedUnit, GatherTicket>(
      {
        bytes: (unit) => unit.fullBytes,
        isPresent: (unit) => unit.isPresent,
        start: (unit) => unit.startGather(),
        finish: (unit, ticket) => unit.finishGather(ticket),
        drop: (unit) => unit.drop(),
      },
      { capBytes: options.gatherCapBytes },
    );
    const links: UnitLinks = {
      reduceGroup: options.reduceGroup,
      gathers: new StartOrder(),
      reductions: new StartOrder(),
      hostBuffers: new HostBuffers(),
    };
    for (const unit of this.units) unit.links = links;
  }

  get units(): ShardedUnit[] {
    return this.instances.flatMap(({ unit }) => unit ?? []);
  }

  /** Whether a backward through this tree is under way. */
  get isInBackward(): boolean {
    return this.#pass !== undefined;
  }

  /** The root's forward begins: every rank queues what its gathers start from, in one go. */
  beginForward(): void {
    this.scheduler.beginForward();
    for (const unit of this.units) {
      if (unit.layout.worldSize > 1 && !unit.isPresent) void unit.publish();
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
    for (const unit of this.units) {
      if (wasInBackward) unit.reset();
      unit.drop();
    }
    for (const instance of this.instances) instance.becomeIdle();
  }

  async #endPass(): Promise<void> {
    if (this.isSyncing) {
      for (const unit of this.units) unit.startReduce();
      for (const unit of this.units) await unit.finishReduce();
    }
    await this.scheduler.settle();
    for (const instance of this.instances) {
      if (this.isSyncing || instance.isResharding) instance.unit?.drop();
      instance.becomeIdle();
    }
    this.#pass = undefined;
  }
}
