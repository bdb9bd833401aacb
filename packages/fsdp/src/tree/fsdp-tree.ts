// What one root shares with every instance below it: the schedule, the reductions, the current
// forward and backward.
//
// Note [order of reductions]
// A unit's reduction starts when its gradient is final, alike on all ranks as long as they use the
// same parameters. With findUnusedParameters they may not: the units that any rank uses are reduced
// in one order, last ones first, each when it is final here and its turn has come.

import { tellFailure } from '@shardweave/collectives';
import { byteSize } from '@shardweave/dtypes';
import { type FlatLoad, StageScheduler } from '@shardweave/nn/flat';
import type { DType, Pass } from '@shardweave/tensor-core';
import { ReduceScatterBucketer } from '../unit/reduce-scatter-bucketer.js';
import type { ShardedUnit } from '../unit/sharded-unit.js';
import type { UnitLinks } from '../unit/unit-links.js';
import { explained } from './explained.js';
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
  /** The classes of all ranks, each once; none on one rank. */
  readonly numericClasses: readonly string[];
}

/** What is known of one backward. */
interface TreePass {
  readonly pass: Pass;
  /** Sets of ranks that have compared what they use. */
  readonly compared: UnitLinks[];
  /** With findUnusedParameters: the parameters that any rank uses, by unit, once known. */
  readonly agreement: Promise<UsedParameters> | undefined;
  agreed: UsedParameters | undefined;
  readonly final: Set<ShardedUnit>;
  /** Reductions that have had their turn. */
  numTurns: number;
}

export class FsdpTree<Instance extends TreeInstance = TreeInstance> {
  readonly root: Instance;
  /** Root first, then as the modules nest. */
  readonly instances: readonly Instance[];
  readonly scheduler: StageScheduler<Instance, readonly FlatLoad[]>;
  readonly bucketer: ReduceScatterBucketer;
  /** False inside noSync: gradients add up unsharded. */
  isSyncing = true;
  /** The instance whose forward is in no other's. */
  outermost: Instance | undefined;
  readonly #options: FsdpTreeOptions;
  #pass: TreePass | undefined;
  #hasGathered = false;
  /** Ends of forward and backward that ranks compare. */
  #ends: Promise<unknown> = Promise.resolve();

  constructor(root: Instance, instances: readonly Instance[], options: FsdpTreeOptions) {
    this.#options = options;
    this.root = root;
    this.instances = instances;
    // An instance's units come and go together.
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

  /** The classes of all ranks, each once; none on one rank. */
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

  /** A forward begins that is in no other. */
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

  /** It ends: what was gathered ahead and not used would be stale after a step or a load. */
  async endForward(): Promise<void> {
    await this.scheduler.settle();
    if (this.#hasGathered) {
      await this.#compareEnd('the end of forward');
    }
  }

  /** Every rank queues what its gathers start from, in one go. */
  #publish(): void {
    for (const unit of this.units) {
      // What rests on the host is read when its gather starts.
      if (unit.isPublished && !unit.isPresent) {
        void unit.publish();
      }
    }
  }

  /** Once per backward, whichever instance it reaches first. */
  beginPass(pass: Pass): void {
    if (this.#pass?.pass === pass) {
      return;
    }
    const agreement = this.#options.findUnusedParameters
      ? agreeOnParameters(this.units, pass)
      : undefined;
    agreement?.catch(() => undefined); // seen by whoever awaits it
    this.#pass = {
      pass,
      compared: [],
      agreement,
      agreed: undefined,
      final: new Set(),
      numTurns: 0,
    };
    this.scheduler.beginBackward();
    pass.onEnd(() => this.#endPass());
    pass.onFailure((error) => this.fail('backward', error));
  }

  /** Waits until ranks agree on what this backward uses, where they have to. */
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

  /** A unit's gradient is final in this backward. */
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
   * Starts agreed reductions as far as units are final; those not used here have nothing to wait
   * for.
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

  /** What ranks compare of a reduction. See Note [what ranks compare]. */
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

  /** Has ranks compare that all are at `end`, beside the gathers; waits until that has started. */
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

  /** An error of forward or backward in words, where ranks were not about the same. */
  explained(error: unknown, operation: 'forward' | 'backward'): unknown {
    const { units, root } = this;
    return explained(error, { operation, units, group: root.processGroup });
  }

  /**
   * Back to rest after a failure; the other ranks learn of it where they wait for this one. Returns
   * when they know.
   */
  async fail(operation: 'forward' | 'backward', error: unknown): Promise<void> {
    const isMet =
      this.#hasGathered ||
      (operation === 'backward' ? this.isSyncing : this.units.some((unit) => !unit.isPresent));
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
   * Back to rest after a failure. Shards are intact; after a failed backward the gradients that it
   * added to are not, and those of noSync are dropped.
   */
  reset(): void {
    const wasInBackward = this.isInBackward;
    this.#pass = undefined;
    this.outermost = undefined;
    this.#ends = Promise.resolve();
    this.scheduler.reset();
    this.bucketer.reset();
    for (const unit of this.units) {
      if (wasInBackward) {
        unit.gradient.sum.reset();
      }
      unit.abandonLoads();
      unit.drop();
    }
    for (const instance of this.instances) {
      instance.becomeIdle();
    }
  }

  /** Bytes of the gradients of all units that are reduced over the ranks of `links` in `dtype`. */
  #gradientBytes(links: UnitLinks, dtype: DType): number {
    return this.units
      .filter((unit) => unit.gradient.isReducedWith(links, dtype) && !unit.isAllFrozen)
      .reduce((sum, unit) => sum + unit.fullElements * byteSize(dtype), 0);
  }

  async #endPass(): Promise<void> {
    try {
      await this.#finishPass();
    } catch (error) {
      throw this.explained(error, 'backward');
    }
  }

  /** Starts the reductions of what is not final by itself, or was left by noSync. */
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
      const added = await Promise.allSettled(this.units.map((unit) => unit.gradient.finish()));
      const failed = added.find((one) => one.status === 'rejected');
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
      instance.becomeIdle();
    }
    this.#pass = undefined;
  }
}
