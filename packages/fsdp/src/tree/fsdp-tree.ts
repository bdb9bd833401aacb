// What one root shares with every instance below it: the schedule, the reductions, and the current
// forward and backward.

import { tellFailure } from '@shardweave/collectives';
import { byteSize } from '@shardweave/dtypes';
import { type FlatLoad, StageScheduler } from '@shardweave/nn/flat';
import type { DType, Pass } from '@shardweave/tensor-core';
import { FsdpStateError } from '../errors.js';
import { GroupRounds } from '../unit/group-rounds.js';
import { ReduceScatterBucketer } from '../unit/reduce-scatter-bucketer.js';
import type { ShardedUnit } from '../unit/sharded-unit.js';
import type { UnitLinks } from '../unit/unit-links.js';
import { WholeRounds } from '../unit/whole-rounds.js';
import { PassReductions } from './pass-reductions.js';
import { toFsdpError } from './to-fsdp-error.js';
import type { TreeInstance } from './tree-instance.js';

export class FsdpTree<Instance extends TreeInstance = TreeInstance> {
  readonly root: Instance;
  /** All instances: the root first, then as the modules nest. */
  readonly instances: readonly Instance[];
  readonly scheduler: StageScheduler<Instance, readonly FlatLoad[]>;
  readonly bucketer: ReduceScatterBucketer;
  /** The rounds of a step in groups; undefined where each backward is reduced. */
  readonly rounds: GroupRounds | WholeRounds | undefined;
  /** The numeric classes of all ranks, each once; empty on a single rank. */
  readonly numericClasses: readonly string[];
  /** False inside noSync, where gradients add up unreduced. */
  isSyncing = true;
  /** The instance whose forward is under way inside no other instance's. */
  outermost: Instance | undefined;
  #pass: PassReductions | undefined;
  /** The last backward whose failure reaches the other ranks. */
  #watched: Pass | undefined;
  #hasGathered = false;
  /** The exchanges by which ranks compare that they are at the end of a forward or backward. */
  #ends: Promise<unknown> = Promise.resolve();

  constructor(root: Instance, instances: readonly Instance[], numericClasses: readonly string[]) {
    this.root = root;
    this.instances = instances;
    this.numericClasses = numericClasses;
    // The units of one instance are gathered and freed together.
    this.scheduler = new StageScheduler(
      {
        bytes: (stage) => gatheredUnits(stage).reduce((sum, { full }) => sum + full.wholeBytes, 0),
        isPresent: (stage) => gatheredUnits(stage).every(({ full }) => full.isPresent),
        start: (stage) => {
          this.#hasGathered = true;
          return gatheredUnits(stage).map(({ full }) => full.startLoad());
        },
        finish: async (stage, tickets) => {
          for (const [index, unit] of gatheredUnits(stage).entries()) {
            await unit.full.finishLoad(tickets[index]!);
          }
        },
        drop: (instance) => instance.drop(),
      },
      { capBytes: root.options.gatherCapBytes },
    );
    const { gradientGroups, shardTrained } = root.options;
    const isWhole = !shardTrained && root.processGroup.worldSize > 1;
    const { isDry } = root.wrapper.device.backend;
    const Rounds = isWhole ? WholeRounds : GroupRounds;
    const rounds =
      gradientGroups === undefined
        ? undefined
        : new Rounds(gradientGroups, root.processGroup, { isDry });
    this.rounds = rounds;
    this.bucketer = new ReduceScatterBucketer({
      capBytes: root.options.bucketCapBytes,
      mostBytes: (links, dtype) => this.#gradientBytes(links, dtype),
      identity: (names, links) => this.#pass!.identity(names, links),
      round: () => (rounds instanceof GroupRounds ? rounds.reduction : undefined),
      wholeRounds: rounds instanceof WholeRounds ? rounds : undefined,
    });
  }

  get units(): ShardedUnit[] {
    return this.instances.flatMap(({ units }) => units);
  }

  /** Whether a backward through this tree is under way. */
  get isInBackward(): boolean {
    return this.#pass !== undefined;
  }

  /**
   * Notes that a forward begins that is inside no other.
   * @throws {StateError} where frozen parameters are to be loaded first
   */
  beginForward(instance: Instance): void {
    // Each rank has some of the largest one, so that all of them find the same to be missing.
    const bySize = [...this.units].sort((a, b) => b.layout.elementCount - a.layout.elementCount);
    for (const { values } of bySize) {
      values.requireLoaded();
    }
    this.outermost = instance;
    this.#hasGathered = false;
    for (const each of this.instances) {
      each.keepWrites();
    }
    this.scheduler.beginForward({ isRecording: instance.wrapper.device.isGradEnabled });
    if (instance === this.root) {
      this.#publish();
    }
  }

  /**
   * Ends the outermost forward. What was gathered ahead and not used is dropped, because a step or
   * a load would make it stale.
   */
  async endForward(): Promise<void> {
    await this.scheduler.settle();
    if (this.#hasGathered) {
      await this.#compareEnd('the end of forward');
    }
  }

  /** Makes every rank queue, in one go, the host bytes that its gathers start from. */
  #publish(): void {
    for (const unit of this.units) {
      // A shard that rests on the host is read when its gather starts.
      if (unit.isPublished && !unit.full.isPresent) {
        void unit.publish();
      }
    }
  }

  /**
   * Begins the tree's part of a backward, once, at whichever instance the backward reaches first.
   */
  beginPass(pass: Pass): void {
    if (this.#pass?.pass === pass) {
      return;
    }
    this.watchPass(pass);
    if (this.isSyncing) {
      this.#requireWhole();
    }
    for (const { gradient } of this.units) {
      gradient.beginPass();
    }
    const { units, bucketer, findsUnused } = this;
    this.#pass = new PassReductions(pass, { units, bucketer, findsUnused });
    this.scheduler.beginBackward();
    pass.onEnd(() => this.#endPass());
  }

  /**
   * Brings the tree to rest, and tells the other ranks, should the backward fail. A backward that
   * failed before it came to the tree is watched by the units that it would have reached.
   */
  watchPass(pass: Pass): void {
    if (this.#watched !== pass) {
      this.#watched = pass;
      pass.onFailure((error) => this.fail('backward', error));
    }
  }

  /**
   * @throws {FsdpStateError} where a backward failed that had begun to change what others left
   */
  #requireWhole(): void {
    const isTorn = this.rounds?.sums.isTorn;
    const torn = this.units.find(({ gradient }) => isTorn || gradient.isTorn);
    if (torn === undefined) {
      return;
    }
    const { rank, worldSize } = this.root.processGroup;
    throw new FsdpStateError(
      `rank ${rank}/${worldSize} backward: expected the gradients that earlier backwards left to be whole, got a part of those of '${torn.name}': a backward that failed since had begun to add to them, or to reduce them. Call zeroGrad and repeat the step.`,
    );
  }

  /** Waits, with findUnusedParameters, until ranks agree on what this backward uses. */
  async agree(): Promise<void> {
    await this.#pass!.agree((agreed) =>
      this.scheduler.requireInBackward(({ units }, kind) =>
        units.some((unit) => agreed.has(unit) || (kind === 'recorded' && unit.hasFrozen)),
      ),
    );
  }

  /** Whether ranks may use different parameters, and so gather and reduce in one agreed order. */
  get findsUnused(): boolean {
    return this.root.options.findUnusedParameters;
  }

  /**
   * Notes that a unit's gradient is final in this backward, and starts its reduction when it is
   * due. A checkpoint whose module has skipped all instances of the tree announces their leaves,
   * too, and no pass has begun here then: there is only what earlier backwards may have left.
   */
  reduceFinal(unit: ShardedUnit): void {
    if (!this.isSyncing) {
      return;
    }
    if (this.#pass !== undefined) {
      this.#pass.reduceFinal(unit);
    } else if (!this.findsUnused) {
      unit.gradient.startReduce(this.bucketer);
    }
  }

  /**
   * Has the ranks compare that all of them are at `end`, in the sequence of gathers. Resolves when
   * that exchange has started, not when it is through.
   */
  async #compareEnd(end: string): Promise<void> {
    const groups = new Map(this.units.map((unit) => [unit.group, unit.links!.gathers]));
    for (const [group, gathers] of groups) {
      if (group.worldSize === 1) {
        continue;
      }
      await new Promise<void>((resolve) => {
        const ended = gathers.enqueue(Promise.resolve(), () => {
          resolve();
          return group.barrier({ tag: end, identity: end });
        });
        this.#ends = Promise.all([this.#ends, ended]).then(() => undefined); // no list of lists
        this.#ends.catch(() => undefined); // seen at the end of a backward, or by later calls
      });
    }
  }

  /** An error of forward or backward in this package's words, where ranks did different things. */
  toFsdpError(error: unknown, operation: 'forward' | 'backward'): unknown {
    const { units, root } = this;
    return toFsdpError(error, { operation, units, group: root.processGroup });
  }

  /**
   * Brings the tree to rest after a failure, and tells the other ranks, which wait for this one:
   * now, or in noSync at the next reduction. They don't for an evaluation that gathers nothing.
   * Resolves when they know.
   */
  async fail(operation: 'forward' | 'backward', error: unknown): Promise<void> {
    const isMet =
      operation === 'backward' ||
      this.root.wrapper.device.isGradEnabled ||
      this.#hasGathered ||
      this.units.some(({ full }) => !full.isPresent);
    this.reset();
    if (!isMet) {
      return;
    }
    const groups = new Map(this.units.map((unit) => [unit.group, unit.links!.gathers]));
    const told = [...groups].map(([group, gathers]) =>
      gathers.enqueue(Promise.resolve(), () => tellFailure(group, operation, error)),
    );
    await Promise.allSettled(told);
  }

  /**
   * Brings the tree to rest after a failure. Shards are intact. For gradients see
   * Note [a backward that fails].
   */
  reset(): void {
    const isPassLost = this.#pass?.isWhole === false;
    this.#pass = undefined;
    this.outermost = undefined;
    this.#ends = Promise.resolve();
    this.scheduler.reset();
    this.bucketer.reset();
    if (isPassLost) {
      this.rounds?.sums.fail();
    }
    for (const unit of this.units) {
      if (isPassLost) {
        unit.gradient.failPass();
      }
      unit.full.abandonLoads();
      unit.full.drop();
    }
    for (const instance of this.instances) {
      instance.activity.becomeIdle();
    }
  }

  /**
   * The bytes of the gradients of all units that are reduced over the ranks of `links` in `dtype`.
   */
  #gradientBytes(links: UnitLinks, dtype: DType): number {
    return this.units
      .filter((unit) => unit.gradient.isReducedWith(links, dtype) && !unit.isAllFrozen)
      .reduce((sum, unit) => sum + unit.full.storage.elementCount * byteSize(dtype), 0);
  }

  async #endPass(): Promise<void> {
    try {
      await this.#finishPass();
    } catch (error) {
      throw this.toFsdpError(error, 'backward');
    }
  }

  async #finishPass(): Promise<void> {
    await this.agree();
    this.scheduler.endBackward();
    if (this.isSyncing || this.#hasGathered) {
      await this.#compareEnd('the end of backward');
    }
    if (this.isSyncing) {
      this.#pass!.reduceLeft();
      await this.bucketer.finish();
      this.#pass!.isWhole = true;
      const added = await Promise.allSettled(this.units.map((unit) => unit.gradient.finish()));
      const failed = added.find((outcome) => outcome.status === 'rejected');
      if (failed !== undefined) {
        throw failed.reason;
      }
    }
    const isStepOver = this.isSyncing && this.rounds?.sums.present.isLast !== false;
    this.rounds?.end(this.units);
    await this.scheduler.settle();
    if (this.isSyncing) {
      await this.#ends; // without reductions ranks need not wait for one another
    }
    for (const instance of this.instances) {
      if (isStepOver || instance.isResharding) {
        instance.drop();
      }
      instance.activity.becomeIdle();
    }
    this.#pass = undefined;
  }
}

/** The units that are gathered for computation: all but tables of which ranks use their parts. */
function gatheredUnits({ units }: TreeInstance): ShardedUnit[] {
  return units.filter(({ isTable }) => !isTable);
}
