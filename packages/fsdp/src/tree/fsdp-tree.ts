// What one root shares with every instance below it: the schedule, the reductions, and the current
// forward and backward.
//
// Note [order of reductions]
// A unit's reduction starts when its gradient is final, which happens in one order on all ranks as
// long as they use the same parameters. With findUnusedParameters they may not. Then the units that
// any rank uses are reduced in one fixed order, the last unit first: each starts when its gradient
// is final on this rank and all units before it in the order have started.

import { tellFailure } from '@shardweave/collectives';
import { byteSize } from '@shardweave/dtypes';
import { type FlatLoad, StageScheduler } from '@shardweave/nn/flat';
import type { DType, Pass } from '@shardweave/tensor-core';
import { FsdpStateError } from '../errors.js';
import { ReduceScatterBucketer } from '../unit/reduce-scatter-bucketer.js';
import type { ShardedUnit } from '../unit/sharded-unit.js';
import type { UnitLinks } from '../unit/unit-links.js';
import { toFsdpError } from './to-fsdp-error.js';
import type { TreeInstance } from './tree-instance.js';
import {
  agreeOnParameters,
  factorsText,
  isSameReduction,
  type UsedParameters,
  usedText,
  usesUnit,
} from './used-parameters.js';

export interface FsdpTreeOptions {
  readonly gatherCapBytes: number;
  readonly bucketCapBytes: number;
  readonly findUnusedParameters: boolean;
  /** The numeric classes of all ranks, each once; empty on a single rank. */
  readonly numericClasses: readonly string[];
}

/** What is known of one backward. */
interface TreePass {
  readonly pass: Pass;
  /** The sets of ranks that have compared already what they use. */
  readonly compared: UnitLinks[];
  /** With findUnusedParameters: the agreement on the parameters that any rank uses, by unit. */
  readonly agreement: Promise<UsedParameters> | undefined;
  agreed: UsedParameters | undefined;
  readonly final: Set<ShardedUnit>;
  /** How many units of the order of reductions have had their turn. */
  numTurns: number;
  /** Whether every gradient is where it rests, or on its way into a store, which is told there. */
  isWhole: boolean;
}

export class FsdpTree<Instance extends TreeInstance = TreeInstance> {
  readonly root: Instance;
  /** All instances: the root first, then as the modules nest. */
  readonly instances: readonly Instance[];
  readonly scheduler: StageScheduler<Instance, readonly FlatLoad[]>;
  readonly bucketer: ReduceScatterBucketer;
  /** False inside noSync, where gradients add up unreduced. */
  isSyncing = true;
  /** The instance whose forward is under way inside no other instance's. */
  outermost: Instance | undefined;
  readonly #options: FsdpTreeOptions;
  #pass: TreePass | undefined;
  /** The last backward whose failure reaches the other ranks. */
  #watched: Pass | undefined;
  #hasGathered = false;
  /** The exchanges by which ranks compare that they are at the end of a forward or backward. */
  #ends: Promise<unknown> = Promise.resolve();

  constructor(root: Instance, instances: readonly Instance[], options: FsdpTreeOptions) {
    this.#options = options;
    this.root = root;
    this.instances = instances;
    // The units of one instance are gathered and freed together.
    this.scheduler = new StageScheduler(
      {
        bytes: ({ units }) => units.reduce((sum, unit) => sum + unit.wholeBytes, 0),
        isPresent: ({ units }) => units.every((unit) => unit.isPresent),
        start: ({ units }) => {
          this.#hasGathered = true;
          return units.map((unit) => unit.startLoad());
        },
        finish: async ({ units }, tickets) => {
          for (const [index, unit] of units.entries()) {
            await unit.finishLoad(tickets[index]!);
          }
        },
        drop: (instance) => instance.drop(),
      },
      { capBytes: options.gatherCapBytes },
    );
    this.bucketer = new ReduceScatterBucketer({
      capBytes: options.bucketCapBytes,
      mostBytes: (links, dtype) => this.#gradientBytes(links, dtype),
      identity: (names, links) => this.#identity(names, links),
    });
  }

  /** The numeric classes of all ranks, each once; empty on a single rank. */
  get numericClasses(): readonly string[] {
    return this.#options.numericClasses;
  }

  get units(): ShardedUnit[] {
    return this.instances.flatMap(({ units }) => units);
  }

  /** Whether a backward through this tree is under way. */
  get isInBackward(): boolean {
    return this.#pass !== undefined;
  }

  /** Notes that a forward begins that is inside no other. */
  beginForward(instance: Instance): void {
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
      if (unit.isPublished && !unit.isPresent) {
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
    const agreement = this.#options.findUnusedParameters
      ? agreeOnParameters(this.units, pass)
      : undefined;
    agreement?.catch(() => undefined); // whoever awaits it sees the error
    this.#pass = {
      pass,
      compared: [],
      agreement,
      agreed: undefined,
      final: new Set(),
      numTurns: 0,
      isWhole: false,
    };
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
    const torn = this.units.find(({ gradient }) => gradient.isTorn);
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
    const current = this.#pass!;
    if (current.agreement === undefined || current.agreed !== undefined) {
      return;
    }
    const agreed = await current.agreement;
    if (current.agreed !== undefined) {
      return;
    }
    current.agreed = agreed;
    this.scheduler.requireInBackward(({ units }, kind) =>
      units.some((unit) => agreed.has(unit) || (kind === 'recorded' && unit.hasFrozen)),
    );
  }

  /** Whether ranks may use different parameters, and so gather and reduce in one agreed order. */
  get findsUnused(): boolean {
    return this.#options.findUnusedParameters;
  }

  /**
   * Notes that a unit's gradient is final in this backward, and starts its reduction when it is
   * due.
   */
  reduceFinal(unit: ShardedUnit): void {
    if (!this.isSyncing) {
      return;
    }
    if (!this.findsUnused) {
      unit.gradient.startReduce(this.bucketer);
      return;
    }
    this.#pass!.final.add(unit);
    this.#reduceInTurn();
  }

  /**
   * Starts the agreed reductions in their order up to the first unit whose gradient is not final
   * yet. A unit that this rank's backward does not use has nothing to wait for.
   */
  #reduceInTurn(options: { readonly isOver?: boolean } = {}): void {
    const { pass, agreed, final } = this.#pass!;
    if (agreed === undefined) {
      return;
    }
    const order = this.units.reverse();
    for (; this.#pass!.numTurns < order.length; this.#pass!.numTurns++) {
      const unit = order[this.#pass!.numTurns]!;
      const leaves = agreed.get(unit);
      if (leaves === undefined) {
        continue;
      }
      const isReady = options.isOver === true || final.has(unit) || !usesUnit(unit, pass);
      if (!isReady) {
        return;
      }
      unit.gradient.startReduce(this.bucketer, { leaves });
    }
  }

  /** The identity that ranks compare for a reduction. See Note [what ranks compare]. */
  #identity(names: readonly string[], links: UnitLinks): string {
    const text = names.join(' + ');
    const { pass, compared } = this.#pass!;
    if (compared.some((other) => isSameReduction(other, links))) {
      return text;
    }
    compared.push(links);
    const used = this.findsUnused ? '' : usedText(this.units, pass, links);
    return `${text} | ${used} by ${factorsText(this.units, links)}`;
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
        this.#ends = Promise.all([this.#ends, ended]);
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
      this.units.some((unit) => !unit.isPresent);
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
    for (const unit of this.units) {
      if (isPassLost) {
        unit.gradient.failPass();
      }
      unit.abandonLoads();
      unit.drop();
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
      .reduce((sum, unit) => sum + unit.fullElements * byteSize(dtype), 0);
  }

  async #endPass(): Promise<void> {
    try {
      await this.#finishPass();
    } catch (error) {
      throw this.toFsdpError(error, 'backward');
    }
  }

  /**
   * Starts the reductions that no final gradient has started: those of partly used units, and what
   * noSync left.
   */
  #reduceLeft(): void {
    if (this.findsUnused) {
      this.#reduceInTurn({ isOver: true });
    } else {
      for (const unit of this.units) {
        unit.gradient.startReduce(this.bucketer);
      }
    }
  }

  async #finishPass(): Promise<void> {
    await this.agree();
    this.scheduler.endBackward();
    if (this.isSyncing || this.#hasGathered) {
      await this.#compareEnd('the end of backward');
    }
    if (this.isSyncing) {
      this.#reduceLeft();
      await this.bucketer.finish();
      this.#pass!.isWhole = true;
      const added = await Promise.allSettled(this.units.map((unit) => unit.gradient.finish()));
      const failed = added.find((outcome) => outcome.status === 'rejected');
      if (failed !== undefined) {
        throw failed.reason;
      }
    }
    await this.scheduler.settle();
    if (this.isSyncing) {
      await this.#ends; // without reductions ranks need not wait for one another
    }
    for (const instance of this.instances) {
      if (this.isSyncing || instance.isResharding) {
        instance.drop();
      }
      instance.activity.becomeIdle();
    }
    this.#pass = undefined;
  }
}
