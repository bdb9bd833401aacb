// What a wrapper does with gradients: they go into the cycle of each backward that is reduced, or
// are kept until one is. PlanKeeper has the plan of buckets, and SyncCycles what ranks do together.

import type { GradSink, Pass, Tensor } from '@shardweave/tensor-core';
import { DdpStateError } from '../errors.js';
import type { RecordedForward } from '../recorded-forwards.js';
import { StepClock, type StepTimings } from '../step-timings.js';
import { profiled, type SyncCycle } from './sync-cycle.js';
import type { SyncCycles } from './sync-cycles.js';
import type { WrapperContext } from './wrapped-parameters.js';

/** The gradient sink of the wrapper's parameters. */
export class GradientSync implements GradSink {
  /** False inside noSync, where gradients add up locally. */
  isSyncing = true;
  isEnabled = true;
  timings: StepTimings | undefined;
  readonly cycles: SyncCycles;
  readonly #wrapper: WrapperContext;
  #pass: Pass | undefined;
  #cycle: SyncCycle | undefined;
  #clock: StepClock | undefined;
  #forwardStartMs: number | undefined;

  constructor(wrapper: WrapperContext, cycles: SyncCycles) {
    this.#wrapper = wrapper;
    this.cycles = cycles;
  }

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
      this.cycles.keeper.refresh();
    }
  }

  /** Notes a training forward that was recorded; undefined where its backward is not reduced. */
  noteRecorded(): RecordedForward | undefined {
    return this.isReducing ? this.cycles.noteRecorded() : undefined;
  }

  // ---- a backward ------------------------------------------------------------------------------

  /** Begins a backward, once, before its first gradient. */
  beginPass(pass: Pass): void {
    if (this.#pass === pass) {
      return;
    }
    if (this.cycles.keeper.context === undefined) {
      throw new DdpStateError(
        'ddp backward: expected a forward through the wrapper before it, got a gradient without one. Call the wrapper, or await its initialize().',
      );
    }
    this.#pass = pass;
    this.cycles.locals.beginPass();
    pass.onFailure(() => this.#reset());
    pass.onEnd(() => this.#endPass());
    if (!this.isReducing) {
      return;
    }
    const clock = new StepClock(this.#forwardStartMs);
    this.#clock = clock;
    this.#forwardStartMs = undefined;
    this.#cycle = this.cycles.begin(pass.reached, clock);
  }

  target(leaf: Tensor): Tensor | undefined {
    return this.#cycle?.target(leaf);
  }

  accept(leaf: Tensor, gradient: Tensor, pass: Pass): void {
    this.beginPass(pass);
    if (this.#cycle === undefined) {
      this.cycles.locals.add(leaf, gradient);
    } else {
      this.#cycle.accept(leaf, gradient);
    }
  }

  final(leaf: Tensor, pass: Pass): void {
    this.beginPass(pass);
    this.#cycle?.final(leaf);
  }

  clear(leaves: readonly Tensor[]): void {
    this.cycles.locals.clear(leaves);
    this.cycles.noteCleared(leaves);
    this.#wrapper.parameters.clearPacked(leaves);
  }

  /** Whether a parameter has a gradient that was reduced. */
  hasGradient(leaf: Tensor): boolean {
    return this.#wrapper.parameters.hasGradient(leaf);
  }

  /**
   * Called when a backward has failed, whether or not it reached this wrapper. The other ranks wait
   * for it, or for a later one that reduces what it should have left here, and are told.
   */
  failed(error: unknown, pass: Pass): void {
    if (this.cycles.keeper.context === undefined) {
      return;
    }
    pass.onFailure(() => this.#wrapper.lanes.tellOthers('ddp backward', error));
  }

  async #endPass(): Promise<void> {
    const { cycles } = this;
    const cycle = this.#cycle;
    if (cycle !== undefined) {
      this.#clock!.noteQueued();
      try {
        await profiled(this.#wrapper, 'ddp: end of backward', () =>
          cycles.finish(cycle, { isSpectator: false }),
        );
      } catch (error) {
        throw cycle.failure === undefined ? error : cycle.failure.error;
      }
      this.timings = this.#clock!.timings();
    }
    this.#cycle = undefined;
    this.#pass = undefined;
  }

  /** Returns to rest after a failed backward. */
  #reset(): void {
    this.cycles.locals.failPass();
    if (this.#cycle !== undefined) {
      this.cycles.drop(this.#cycle);
    }
    this.#cycle = undefined;
    this.#pass = undefined;
  }
}
