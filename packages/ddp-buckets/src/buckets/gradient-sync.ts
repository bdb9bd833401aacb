// What a wrapper does with gradients: it begins and ends the cycle of each backward, and keeps the
// gradients that are not to be reduced yet. PlanKeeper has the plan of buckets, and WrapperLanes
// the groups that the buckets go over.

import { type PackedGradient, packedGradientOf } from '@shardweave/nn/flat';
import type { Device, GradSink, Pass, Tensor } from '@shardweave/tensor-core';
import { allReduceHook } from '../communication-hooks/all-reduce-hook.js';
import { DdpStateError } from '../errors.js';
import type { ResolvedDdpOptions } from '../options.js';
import { UnevenInputs } from '../ranks/uneven-inputs.js';
import type { WrapperLanes } from '../ranks/wrapper-lanes.js';
import { type RecordedForward, RecordedForwards } from '../recorded-forwards.js';
import { StepClock, type StepTimings } from '../step-timings.js';
import { LocalGradients } from './local-gradients.js';
import type { PlanKeeper } from './plan-keeper.js';
import { type InTurn, isToLearn, learnBuckets, usedByAny } from './share-buckets.js';
import { type CycleContext, type CycleOutcome, SyncCycle } from './sync-cycle.js';

/** The gradient sink of the wrapper's parameters. */
export class GradientSync implements GradSink {
  /** False inside noSync, where gradients add up locally. */
  isSyncing = true;
  isEnabled = true;
  timings: StepTimings | undefined;
  /**
   * The buffers that retained gradients are views of, by bucket. They live as long as those
   * gradients.
   */
  buffers: readonly (Tensor | undefined)[] = [];
  readonly locals = new LocalGradients();
  /** Tells who takes part while ranks inside join run out of inputs. */
  readonly uneven = new UnevenInputs();
  readonly #device: Device;
  readonly #options: ResolvedDdpOptions;
  readonly #lanes: WrapperLanes;
  readonly #keeper: PlanKeeper;
  /**
   * The number of reduced backwards that have begun. Inside join those of other ranks count too.
   */
  #numBackwards = 0;
  readonly #forwards = new RecordedForwards();
  #pass: Pass | undefined;
  #cycle: SyncCycle | undefined;
  #clock: StepClock | undefined;
  #forwardStartMs: number | undefined;
  /** The reduced parameters that no step has changed since, by the versions of their values. */
  readonly #unstepped = new Map<Tensor, number>();
  /** The own sinks of packed parameters, which get what is reduced. */
  readonly #packed = new Map<Tensor, PackedGradient>();

  constructor(
    device: Device,
    options: ResolvedDdpOptions,
    { lanes, keeper }: { readonly lanes: WrapperLanes; readonly keeper: PlanKeeper },
  ) {
    this.#device = device;
    this.#options = options;
    this.#lanes = lanes;
    this.#keeper = keeper;
  }

  /** Takes the gradients of a parameter, those of a packed one from its own sink. */
  takeOver(leaf: Tensor): void {
    const packed = packedGradientOf(leaf);
    if (packed !== undefined) {
      this.#packed.set(leaf, packed);
    }
    leaf.gradSink = this;
  }

  /** Gives the gradients of a parameter back to whoever took them before. */
  giveBack(leaf: Tensor): void {
    if (leaf.gradSink === this) {
      leaf.gradSink = this.#packed.get(leaf);
    }
  }

  /** The own sink of a packed parameter; undefined for another one. */
  readonly packedOf = (leaf: Tensor): PackedGradient | undefined => this.#packed.get(leaf);

  get isInBackward(): boolean {
    return this.#pass !== undefined;
  }

  /** Whether the next backward is reduced. */
  get isReducing(): boolean {
    return this.isSyncing && this.isEnabled;
  }

  /**
   * Called when a forward begins: makes the buckets anew where the set of trained parameters has
   * changed.
   */
  noteForward(): void {
    this.#forwardStartMs ??= performance.now();
    if (this.isEnabled) {
      this.#keeper.refresh();
    }
  }

  /**
   * Notes a training forward that was recorded, and whose backward will call noteReached. Undefined
   * where ranks may make different numbers of forwards.
   */
  noteRecorded(): RecordedForward | undefined {
    if (!this.isReducing || this.uneven.isOpen || !this.#lanes.areOpen) {
      return undefined;
    }
    return this.#forwards.note(this.#numBackwards);
  }

  noteReached(forward: RecordedForward): void {
    this.#forwards.reach(forward);
  }

  // ---- a backward ------------------------------------------------------------------------------

  /** Begins a backward, once, before its first gradient. */
  beginPass(pass: Pass): void {
    if (this.#pass === pass) {
      return;
    }
    if (this.#keeper.context === undefined) {
      throw new DdpStateError(
        'ddp backward: expected a forward through the wrapper before it, got a gradient without one. Call the wrapper, or await its initialize().',
      );
    }
    this.#pass = pass;
    this.locals.beginPass();
    pass.onFailure(() => this.#reset());
    pass.onEnd(() => this.#endPass());
    if (!this.isReducing) {
      return;
    }
    this.#numBackwards += 1;
    this.#requireWholeLocals();
    this.#keeper.refresh();
    const isLeft = (tensor: Tensor) => this.locals.has(tensor);
    this.#keeper.reach.require(this.#keeper.plan!.active, pass.reached, isLeft);
    this.#clock = new StepClock(this.#forwardStartMs);
    this.#forwardStartMs = undefined;
    this.uneven.announceBackward();
    this.#cycle = this.#beginCycle(pass.reached, this.#clock);
  }

  target(leaf: Tensor): Tensor | undefined {
    return this.#cycle?.target(leaf);
  }

  accept(leaf: Tensor, gradient: Tensor, pass: Pass): void {
    this.beginPass(pass);
    if (this.#cycle === undefined) {
      this.locals.add(leaf, gradient);
    } else {
      this.#cycle.accept(leaf, gradient);
    }
  }

  final(leaf: Tensor, pass: Pass): void {
    this.beginPass(pass);
    this.#cycle?.final(leaf);
  }

  clear(leaves: readonly Tensor[]): void {
    this.locals.clear(leaves);
    const skipped = leaves.filter((leaf) => {
      const version = this.#unstepped.get(leaf);
      this.#unstepped.delete(leaf);
      return version === versionOf(leaf);
    });
    this.#forget(new Set(skipped));
    const bySink = new Map<PackedGradient, Tensor[]>();
    for (const leaf of leaves) {
      const sink = this.#packed.get(leaf);
      if (sink !== undefined) {
        bySink.set(sink, [...(bySink.get(sink) ?? []), leaf]);
      }
    }
    for (const [sink, own] of bySink) {
      sink.clear(own);
    }
  }

  /** Whether a parameter has a gradient that was reduced. */
  hasGradient(leaf: Tensor): boolean {
    return this.#packed.get(leaf)?.hasGradient(leaf) ?? leaf.grad !== undefined;
  }

  /** Makes the hook forget the errors of reductions that no step has used. */
  #forget(leaves: ReadonlySet<Tensor>): void {
    const hook = this.#options.communicationHook;
    if (leaves.size > 0 && hook?.forget !== undefined) {
      const active = this.#keeper.plan?.active.filter(({ tensor }) => leaves.has(tensor)) ?? [];
      hook.forget(active.map(({ path }) => path));
    }
  }

  /**
   * Called when a backward has failed, whether or not it reached this wrapper. The other ranks wait
   * for it, or for a later one that reduces what it should have left here, and are told.
   */
  failed(error: unknown, pass: Pass): void {
    if (this.#keeper.context === undefined) {
      return;
    }
    pass.onFailure(() => this.#lanes.tellOthers('ddp backward', error));
  }

  /** @throws {DdpStateError} where a backward failed that had begun to add to what others left */
  #requireWholeLocals(): void {
    if (!this.locals.areTorn) {
      return;
    }
    throw new DdpStateError(
      'ddp backward: expected the gradients that backwards in noSync left to be whole, got a part of them: a backward that failed since had begun to add to them, or to reduce them. Call zeroGrad and repeat the step.',
    );
  }

  /** The identity of the present backward's collectives, which ranks compare. */
  #identity(): string {
    const number = this.#numBackwards;
    const { name } = this.#options;
    const wrapper = name === '' ? String(this.#lanes.wrapper) : `'${name}'`;
    // Ranks that have run out of inputs know only the number of the backward.
    const numLeft = this.uneven.isOpen ? 0 : this.#forwards.countLeft(number);
    const left = numLeft === 0 ? '' : ` (${numLeft} forwards left without a backward)`;
    return `ddp ${wrapper} backward ${number}${left}`;
  }

  #beginCycle(
    reached: ReadonlySet<Tensor>,
    clock: StepClock,
    locals: LocalGradients = this.locals,
  ): SyncCycle {
    const agreed = Promise.all([this.uneven.round, this.#keeper.agree()]);
    const context = this.#cycleContext(locals);
    const identity = this.#identity();
    return new SyncCycle(context, { plan: this.#keeper.plan!, agreed, reached, clock, identity });
  }

  #cycleContext(locals: LocalGradients): CycleContext {
    const { communicationHook, isDelayed, name } = this.#options;
    return {
      lanes: this.#lanes.all,
      hook: communicationHook ?? allReduceHook,
      owner: this,
      hostBuffers: this.#keeper.hostBuffers,
      locals,
      isDelayed,
      tagPrefix: name === '' ? '' : `${name} `,
      range: (name, body) => this.range(name, body),
    };
  }

  /** Runs `body`, as a range of the device's trace where `prof` is set. */
  range<T>(name: string, body: () => T): T {
    const { trace } = this.#device;
    return this.#options.isProfiling && trace !== undefined ? trace.range(name, body) : body();
  }

  async #endPass(): Promise<void> {
    const cycle = this.#cycle;
    if (cycle !== undefined) {
      this.#clock!.noteQueued();
      try {
        await this.range('ddp: end of backward', () =>
          this.#finishCycle(cycle, { isSpectator: false }),
        );
      } catch (error) {
        throw cycle.failure === undefined ? error : cycle.failure.error;
      }
      this.timings = this.#clock!.timings();
    }
    this.#cycle = undefined;
    this.#pass = undefined;
  }

  async #finishCycle(
    cycle: SyncCycle,
    { isSpectator }: { readonly isSpectator: boolean },
  ): Promise<void> {
    cycle.flush();
    await cycle.agreed;
    const round = await this.uneven.round;
    const context = this.#keeper.context!;
    const inTurn: InTurn = this.#lanes.areOpen ? (body) => this.#lanes.inTurn(body) : undefined;
    const used = await usedByAny(cycle, context, inTurn);
    let structure: number[][] | undefined;
    if (isToLearn(cycle, context)) {
      this.#keeper.reach.expect(this.#pass?.reached);
      const leader = round?.active[0] ?? 0;
      structure = await learnBuckets(cycle, { context, used, leader }, inTurn);
    }
    const outcome: CycleOutcome = {
      postdivide: this.uneven.postdivide(this.#options, round?.active.length),
      isUsed: (index) => !isSpectator && used?.[index] !== 0,
    };
    this.buffers = await cycle.receive(outcome);
    for (const { tensor } of cycle.plan.active) {
      if (!this.#unstepped.has(tensor)) {
        this.#unstepped.set(tensor, versionOf(tensor));
      }
    }
    if (structure !== undefined) {
      this.#keeper.learn(structure);
    }
  }

  /** Returns to rest after a failed backward. */
  #reset(): void {
    this.locals.failPass();
    if (this.#cycle !== undefined) {
      this.#cycle.reset();
      this.#forget(new Set(this.#cycle.plan.active.map(({ tensor }) => tensor)));
    }
    this.#cycle = undefined;
    this.#pass = undefined;
  }

  // ---- uneven inputs ---------------------------------------------------------------------------

  /**
   * The identity of a broadcast of buffers, which ranks compare: it has the number of backwards
   * before.
   */
  get buffersIdentity(): string {
    return `ddp ${this.#lanes.wrapper} buffers after backward ${this.#numBackwards}`;
  }

  /**
   * Takes part in the others' backward with zeros only: what a noSync of this rank has left is not
   * part of it.
   */
  async watchBackward(): Promise<void> {
    this.#numBackwards += 1;
    const cycle = this.#beginCycle(new Set(), new StepClock(undefined), new LocalGradients());
    await this.#finishCycle(cycle, { isSpectator: true });
  }
}

/** The version of the values that a step changes. */
function versionOf({ piece, storage }: Tensor): number {
  return (piece?.flat.storage ?? storage).version;
}
