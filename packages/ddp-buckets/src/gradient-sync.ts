// What a wrapper does with gradients: the plan of buckets and when it is made anew, each backward's
// cycle, and what the ranks agree on around it.

import { exchangeWords, type ProcessGroup } from '@shardweave/collectives';
import { byteSize } from '@shardweave/dtypes';
import { HostBuffers } from '@shardweave/nn/flat';
import type { Device, GradSink, Pass, Tensor } from '@shardweave/tensor-core';
import { exchangeCall, requireAgreement } from './agreement.js';
import type { ActiveParameter } from './bucket.js';
import { BucketPlan, guessStructure, type PlanContext } from './bucket-plan.js';
import { allReduceHook } from './communication-hooks/all-reduce-hook.js';
import { DdpStateError } from './errors.js';
import { LocalGradients } from './local-gradients.js';
import { openLanes } from './open-lanes.js';
import type { ResolvedDdpOptions } from './options.js';
import { Reach } from './reach.js';
import { type RecordedForward, RecordedForwards } from './recorded-forwards.js';
import { type InTurn, isToLearn, learnBuckets, usedByAny } from './share-buckets.js';
import { StepClock, type StepTimings } from './step-timings.js';
import { type CycleContext, type CycleOutcome, SyncCycle } from './sync-cycle.js';
import { serial, tellOthers } from './tell-others.js';
import { type JoinBody, UnevenInputs } from './uneven-inputs.js';

/** The sink of the wrapper's parameters. */
export class GradientSync implements GradSink {
  /** False inside noSync and while all-reduces are disabled: gradients add up locally. */
  isSyncing = true;
  isEnabled = true;
  timings: StepTimings | undefined;
  /** Of retained gradients, by bucket; as long-lived as they are. */
  buffers: readonly (Tensor | undefined)[] = [];
  readonly locals = new LocalGradients();
  /** What join adds. */
  readonly uneven = new UnevenInputs();
  readonly #device: Device;
  readonly #group: ProcessGroup;
  readonly #options: ResolvedDdpOptions;
  /** The trainable parameters now. */
  readonly #trainable: () => readonly ActiveParameter[];
  #hostBuffers = new HostBuffers();
  #control: ProcessGroup | undefined;
  #lanes: readonly ProcessGroup[] = [];
  #context: PlanContext | undefined;
  #plan: BucketPlan | undefined;
  #isAgreed = false;
  /** Among the wrappers of the group, for what ranks compare. */
  #wrapper = 0;
  /** Backwards that are reduced, begun so far; those of other ranks in join count, too. */
  #numBackwards = 0;
  readonly #forwards = new RecordedForwards();
  readonly #reach: Reach;
  #pass: Pass | undefined;
  #cycle: SyncCycle | undefined;
  #clock: StepClock | undefined;
  #forwardStartMs: number | undefined;

  constructor(
    device: Device,
    group: ProcessGroup,
    options: ResolvedDdpOptions,
    trainable: () => readonly ActiveParameter[],
  ) {
    this.#device = device;
    this.#group = group;
    this.#options = options;
    this.#trainable = trainable;
    this.#reach = new Reach(group, options);
  }

  get plan(): BucketPlan | undefined {
    return this.#plan;
  }

  /** The groups that buckets take in turn; none on one rank. */
  get communicators(): readonly ProcessGroup[] {
    return [...this.#lanes];
  }

  get isInBackward(): boolean {
    return this.#pass !== undefined;
  }

  /** Whether other ranks wait for this one's next backward. */
  get isReducing(): boolean {
    return this.isSyncing && this.isEnabled;
  }

  // ---- opening ---------------------------------------------------------------------------------

  /**
   * Has all ranks wait their turn on the group, where other wrappers use it, too: `body` runs beside no
   * other collective of this package. On one rank at once.
   */
  async inOpening(body: () => Promise<void>): Promise<void> {
    if (this.#group.worldSize === 1) {
      return body();
    }
    const { starts } = this.#group;
    await starts.enqueue(
      Promise.resolve(),
      () => {
        this.#wrapper = starts.nextUser();
        return body();
      },
      serial(this.#group, 'ddp initialize'),
    );
  }

  /** Opens the lanes, once, and agrees on how large a bucket may be; collective. */
  async open(): Promise<void> {
    const { limits } = this.#device.backend.info;
    const bytes = Math.min(limits.maxViewBytes, limits.maxBufferBytes);
    let maxElements = Math.floor(bytes / byteSize('f32')); // what 16 bits are cast to fits, too
    if (this.#group.worldSize > 1) {
      const word = Uint32Array.of(Math.min(maxElements, 2 ** 32 - 1));
      const words = await exchangeWords(this.#group, word, exchangeCall('largest bucket'));
      maxElements = words.reduce((a, b) => Math.min(a, b));
      this.#control = this.#group;
      this.#lanes = await openLanes(this.#control, this.#options);
    }
    this.#context = { device: this.#device, options: this.#options, maxElements };
  }

  /** Runs a collective of the wrapper in its turn on the first lane. */
  inTurn<T>(body: (group: ProcessGroup) => Promise<T>): Promise<T> {
    const group = this.#control!;
    return group.starts.enqueue(Promise.resolve(), () => body(group), serial(group, 'ddp'));
  }

  // ---- the plan --------------------------------------------------------------------------------

  /** A forward begins: buckets are made anew where other parameters are trained than before. */
  noteForward(): void {
    this.#forwardStartMs ??= performance.now();
    if (this.isEnabled) {
      this.refresh();
    }
  }

  /** Makes buckets anew where the trainable parameters have changed, by identity. */
  refresh(): void {
    const context = this.#context;
    if (context === undefined) {
      return;
    }
    const active = this.#trainable();
    if (this.#plan?.isFor(active) === true) {
      return;
    }
    this.#isAgreed = false;
    this.#reach.forget();
    this.#replacePlan(active, guessStructure(active, context), { isLearned: false });
  }

  #replacePlan(
    active: readonly ActiveParameter[],
    structure: readonly (readonly number[])[],
    options: { readonly isLearned: boolean },
  ): void {
    this.#plan = new BucketPlan(active, structure, this.#context!, options);
    this.#hostBuffers = new HostBuffers(); // of other sizes
  }

  /**
   * A training forward was recorded; undefined where the ranks' numbers of them need not be equal.
   * Its backward calls noteReached.
   */
  noteRecorded(): RecordedForward | undefined {
    if (!this.isReducing || this.uneven.isOpen || this.#control === undefined) {
      return undefined;
    }
    return this.#forwards.note(this.#numBackwards);
  }

  noteReached(forward: RecordedForward): void {
    this.#forwards.reach(forward);
  }

  // ---- a backward ------------------------------------------------------------------------------

  /** Once per backward, before its first gradient. */
  beginPass(pass: Pass): void {
    if (this.#pass === pass) {
      return;
    }
    if (this.#context === undefined) {
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
    this.refresh();
    const isLeft = (tensor: Tensor) => this.locals.has(tensor);
    this.#reach.require(this.#plan!.active, pass.reached, isLeft);
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
  }

  /**
   * A backward has failed, before it reached this wrapper or after. Where it would have been reduced the
   * others wait for it.
   */
  failed(error: unknown, pass: Pass): void {
    if (this.#context === undefined || !this.isReducing) {
      return;
    }
    pass.onFailure(() => this.tellOthers('ddp backward', error));
  }

  /**
   * This rank has failed, and the others wait for it on whichever group: it tells them on all, behind
   * what it has started on each. Returns when they have failed alike, or the job has ended.
   */
  async tellOthers(operation: string, error: unknown): Promise<void> {
    const groups = new Set([this.#group, ...this.#lanes]);
    const told = [...groups].map((group) =>
      group.starts.enqueue(Promise.resolve(), () => tellOthers(group, operation, error), {
        isSerial: true,
      }),
    );
    await Promise.all(told);
  }

  /** @throws {DdpStateError} where a backward in noSync has failed half-way */
  #requireWholeLocals(): void {
    if (!this.locals.areTorn) {
      return;
    }
    throw new DdpStateError(
      'ddp backward: expected the gradients of whole backwards, got those of one that failed before it was reduced. Part of it is in their sums; call zeroGrad and repeat the step.',
    );
  }

  /** What ranks compare of the present backward's collectives. */
  #identity(): string {
    const number = this.#numBackwards;
    const { name } = this.#options;
    const wrapper = name === '' ? String(this.#wrapper) : `'${name}'`;
    // Ranks that have run out of inputs know the number alone.
    const numLeft = this.uneven.isOpen ? 0 : this.#forwards.countLeft(number);
    const left = numLeft === 0 ? '' : ` (${numLeft} forwards left without a backward)`;
    return `ddp ${wrapper} backward ${number}${left}`;
  }

  #beginCycle(
    reached: ReadonlySet<Tensor>,
    clock: StepClock,
    locals: LocalGradients = this.locals,
  ): SyncCycle {
    const agreed = Promise.all([this.uneven.round, this.#agree()]);
    const context = this.#cycleContext(locals);
    const identity = this.#identity();
    return new SyncCycle(context, { plan: this.#plan!, agreed, reached, clock, identity });
  }

  #cycleContext(locals: LocalGradients): CycleContext {
    const { communicationHook, isDelayed, name } = this.#options;
    return {
      lanes: this.#lanes,
      hook: communicationHook ?? allReduceHook,
      hostBuffers: this.#hostBuffers,
      locals,
      isDelayed,
      tagPrefix: name === '' ? '' : `${name} `,
      range: (name, body) => this.range(name, body),
    };
  }

  /** With `prof`, a range of the device's trace. */
  range<T>(name: string, body: () => T): T {
    const { trace } = this.#device;
    return this.#options.isProfiling && trace !== undefined ? trace.range(name, body) : body();
  }

  /** New sets of trainable parameters are compared over ranks before anything of them is sent. */
  #agree(): Promise<unknown> | undefined {
    if (this.#isAgreed || this.#control === undefined) {
      return undefined;
    }
    this.#isAgreed = true;
    const lines = this.#plan!.active.map(describeParameter);
    const options = {
      what: 'trainable parameters',
      advice: 'Build, wrap and freeze the model alike on all ranks.',
    };
    return this.inTurn((group) => requireAgreement(group, lines, options));
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
    const context = this.#context!;
    const inTurn: InTurn = this.#control && ((body) => this.inTurn(body));
    const used = await usedByAny(cycle, context, inTurn);
    let structure: number[][] | undefined;
    if (isToLearn(cycle, context)) {
      this.#reach.expect(this.#pass?.reached);
      const leader = round?.active[0] ?? 0;
      structure = await learnBuckets(cycle, { context, used, leader }, inTurn);
    }
    const outcome: CycleOutcome = {
      postdivide: this.uneven.postdivide(this.#options, round?.active.length),
      isUsed: (index) => !isSpectator && used?.[index] !== 0,
    };
    this.buffers = await cycle.receive(outcome);
    if (structure !== undefined) {
      this.#replacePlan(cycle.plan.active, structure, { isLearned: true });
    }
  }

  /** Back to rest after a failed backward; what it had added is lost. */
  #reset(): void {
    this.locals.failPass();
    this.#cycle?.reset();
    this.#cycle = undefined;
    this.#pass = undefined;
  }

  // ---- uneven inputs ---------------------------------------------------------------------------

  /**
   * Runs `body` with ranks that may run out of inputs at different times; the early ones take part
   * in the others' collectives with zeros. Collective.
   * @returns the rank whose weights are the newest
   */
  async join(
    body: () => Promise<void>,
    options: Pick<JoinBody, 'isScaledToActive' | 'onBuffers'>,
  ): Promise<number> {
    if (this.#control === undefined) {
      await body();
      return 0;
    }
    return this.uneven.run(this.#control, {
      ...options,
      body,
      onFailure: (error) => this.tellOthers('ddp join', error),
      onOut: () => this.refresh(),
      onBackward: () => this.#watchBackward(),
    });
  }

  /** What ranks compare of buffers: how many backwards there were before. */
  get buffersIdentity(): string {
    return `ddp ${this.#wrapper} buffers after backward ${this.#numBackwards}`;
  }

  /** Takes part in the others' backward with zeros alone: what a noSync of this rank has left is not theirs. */
  async #watchBackward(): Promise<void> {
    this.#numBackwards += 1;
    const cycle = this.#beginCycle(new Set(), new StepClock(undefined), new LocalGradients());
    await this.#finishCycle(cycle, { isSpectator: true });
  }
}

/** What ranks compare. */
export function describeParameter({ path, tensor }: ActiveParameter): string {
  return `${path} ${tensor.dtype} [${tensor.shape.join(', ')}]`;
}
