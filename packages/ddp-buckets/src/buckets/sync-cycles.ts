// Begins and ends the cycles of a wrapper's reduced backwards. It counts them, so that ranks can
// compare which one they are in, and knows what each agrees on with the other ranks.

import { GroupSums } from '@shardweave/nn/flat';
import type { Tensor } from '@shardweave/tensor-core';
import { DdpStateError } from '../errors.js';
import { UnevenInputs } from '../ranks/uneven-inputs.js';
import { type RecordedForward, RecordedForwards } from '../recorded-forwards.js';
import { StepClock } from '../step-timings.js';
import type { Bucket } from './bucket.js';
import type { BucketPlan } from './bucket-plan.js';
import { LocalGradients } from './local-gradients.js';
import type { PlanKeeper } from './plan-keeper.js';
import { type InTurn, isToLearn, learnBuckets, usedByAny } from './share-buckets.js';
import { type CycleOutcome, SyncCycle } from './sync-cycle.js';
import type { WrapperContext } from './wrapped-parameters.js';

export class SyncCycles {
  /**
   * The buffers that retained gradients are views of, by bucket. They live as long as those
   * gradients.
   */
  buffers: readonly (Tensor | undefined)[] = [];
  /** Tells who takes part while ranks inside join run out of inputs. */
  readonly uneven = new UnevenInputs();
  readonly keeper: PlanKeeper;
  /** What backwards that were not reduced have left. */
  readonly locals = new LocalGradients();
  /** The sums of the groups that make up a step; undefined where each backward is reduced. */
  readonly groups: GroupSums<Bucket> | undefined;
  readonly #wrapper: WrapperContext;
  /** The plan with which the present step's groups began. */
  #groupPlan: BucketPlan | undefined;
  /**
   * The number of reduced backwards that have begun. Inside join those of other ranks count too.
   */
  #numBackwards = 0;
  readonly #forwards = new RecordedForwards();
  /** The reduced parameters that no step has changed since, by the versions of their values. */
  readonly #unstepped = new Map<Tensor, number>();

  constructor(wrapper: WrapperContext, keeper: PlanKeeper) {
    this.#wrapper = wrapper;
    this.keeper = keeper;
    const { device, lanes, options } = wrapper;
    const { gradientGroups: groups, groupCounts: counts } = options;
    const { isDry } = device.backend;
    this.groups =
      groups === undefined ? undefined : GroupSums.dealt(groups, lanes.group, { isDry, counts });
  }

  /**
   * Notes a training forward that was recorded, and whose backward will call noteReached. Undefined
   * where ranks may make different numbers of forwards.
   */
  noteRecorded(): RecordedForward | undefined {
    return this.uneven.isOpen || !this.#wrapper.lanes.areOpen
      ? undefined
      : this.#forwards.note(this.#numBackwards);
  }

  noteReached(forward: RecordedForward): void {
    this.#forwards.reach(forward);
  }

  /**
   * Begins the cycle of a backward.
   * @throws {DdpStateError} where a backward failed that had begun to add to what others left
   * @throws {DdpUnusedParameterError} for parameters that the ranks would wait for in vain
   */
  begin(reached: ReadonlySet<Tensor>, clock: StepClock): SyncCycle {
    this.#numBackwards += 1;
    this.locals.requireWhole();
    this.keeper.refresh();
    this.#requireWholeGroups();
    const isLeft = (tensor: Tensor) => this.locals.has(tensor);
    this.keeper.reach.require(this.keeper.plan!.active, reached, isLeft);
    this.uneven.announceBackward();
    return this.#make(reached, clock);
  }

  /**
   * Takes part in the others' backward with zeros only: what a noSync of this rank has left is not
   * part of it.
   */
  async watch(): Promise<void> {
    this.#numBackwards += 1;
    const cycle = this.#make(new Set(), new StepClock(undefined), new LocalGradients());
    await this.finish(cycle, { isSpectator: true });
  }

  #make(reached: ReadonlySet<Tensor>, clock: StepClock, locals = this.locals): SyncCycle {
    const { hostBuffers, plan } = this.keeper;
    const agreed = Promise.all([this.uneven.round, this.keeper.agree()]);
    const identity = this.#identity();
    const groups = this.groups && { sums: this.groups, call: this.groups.present };
    const options = { plan: plan!, hostBuffers, locals, agreed, reached, clock, identity, groups };
    return new SyncCycle(this.#wrapper, options);
  }

  /** Ends the cycle of a backward: all gradients have come. */
  async finish(
    cycle: SyncCycle,
    { isSpectator }: { readonly isSpectator: boolean },
  ): Promise<void> {
    cycle.flush();
    await cycle.agreed;
    if (this.groups?.present.isLast === false) {
      await cycle.hold();
      this.groups.endCall();
      return;
    }
    const round = await this.uneven.round;
    const context = this.keeper.context!;
    const { lanes, options } = this.#wrapper;
    const inTurn: InTurn = lanes.areOpen ? (body) => lanes.inTurn(body) : undefined;
    const used = await usedByAny(cycle, context, inTurn);
    let structure: number[][] | undefined;
    if (isToLearn(cycle, context)) {
      this.keeper.reach.expect(cycle.reached);
      const leader = round?.active[0] ?? 0;
      structure = await learnBuckets(cycle, { context, used, leader }, inTurn);
    }
    const outcome: CycleOutcome = {
      postdivide: this.uneven.postdivide(options, round?.active.length),
      isUsed: (index) => !isSpectator && used?.[index] !== 0,
    };
    this.buffers = await cycle.receive(outcome);
    this.groups?.endCall();
    for (const { tensor } of cycle.plan.active) {
      if (!this.#unstepped.has(tensor)) {
        this.#unstepped.set(tensor, versionOf(tensor));
      }
    }
    if (structure !== undefined) {
      this.keeper.learn(structure);
    }
  }

  /** Drops the cycle of a backward that has failed. */
  drop(cycle: SyncCycle): void {
    cycle.reset();
    this.groups?.fail();
    this.#forget(new Set(cycle.plan.active.map(({ tensor }) => tensor)));
  }

  /** Called when gradients are cleared, whether or not a step has used them. */
  noteCleared(leaves: readonly Tensor[]): void {
    this.groups?.clear();
    const skipped = leaves.filter((leaf) => {
      const version = this.#unstepped.get(leaf);
      this.#unstepped.delete(leaf);
      return version === versionOf(leaf);
    });
    this.#forget(new Set(skipped));
  }

  /** Makes the hook forget the errors of reductions that no step has used. */
  #forget(leaves: ReadonlySet<Tensor>): void {
    const hook = this.#wrapper.options.communicationHook;
    if (leaves.size > 0 && hook?.forget !== undefined) {
      const active = this.keeper.plan?.active.filter(({ tensor }) => leaves.has(tensor)) ?? [];
      hook.forget(active.map(({ path }) => path));
    }
  }

  /**
   * @throws {DdpStateError} where a call of the step has failed, or other parameters are trained
   * than when it began
   */
  #requireWholeGroups(): void {
    const { groups } = this;
    if (groups === undefined) {
      return;
    }
    const plan = this.keeper.plan!;
    if (groups.present.index === 0) {
      this.#groupPlan = plan;
    }
    if (groups.isTorn || plan !== this.#groupPlan) {
      const why = groups.isTorn
        ? 'one that failed after others of its step'
        : 'other trained parameters than those that the step began with';
      throw new DdpStateError(
        `ddp backward: expected the ${groups.groups} groups of a step one after the other, got ${why}. Call zeroGrad and begin the step with its first group.`,
      );
    }
  }

  /** The identity of the present backward's collectives, which ranks compare. */
  #identity(): string {
    const number = this.#numBackwards;
    const { lanes, options } = this.#wrapper;
    const wrapper = options.name === '' ? String(lanes.wrapper) : `'${options.name}'`;
    // Ranks that have run out of inputs know only the number of the backward.
    const numLeft = this.uneven.isOpen ? 0 : this.#forwards.countLeft(number);
    const left = numLeft === 0 ? '' : ` (${numLeft} forwards left without a backward)`;
    return `ddp ${wrapper} backward ${number}${left}`;
  }

  /**
   * The identity of a broadcast of buffers, which ranks compare: it has the number of backwards
   * before.
   */
  get buffersIdentity(): string {
    return `ddp ${this.#wrapper.lanes.wrapper} buffers after backward ${this.#numBackwards}`;
  }
}

/** The version of the values that a step changes. */
function versionOf({ piece, storage }: Tensor): number {
  return (piece?.flat.storage ?? storage).version;
}
