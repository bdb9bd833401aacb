// What a wrapper does with gradients: the plan of buckets and when it is made anew, each backward's
// cycle, and what the ranks agree on around it.

import { exchangeWords, type ProcessGroup } from '@shardweave/collectives';
import { byteSize } from '@shardweave/dtypes';
import { HostBuffers } from '@shardweave/nn/flat';
import type { Device, Pass, Tensor } from '@shardweave/tensor-core';
import { exchangeCall, requireAgreement } from './agreement.js';
import type { ActiveParameter } from './bucket.js';
import {
  BucketPlan,
  decodeStructure,
  encodeStructure,
  guessStructure,
  learnStructure,
  type PlanContext,
} from './bucket-plan.js';
import { allReduceHook } from './communication-hooks/all-reduce-hook.js';
import { endingJob, endJob } from './end-job.js';
import { DdpStateError, DdpUnusedParameterError } from './errors.js';
import { JoinRounds } from './join-rounds.js';
import { LocalGradients } from './local-gradients.js';
import type { ResolvedDdpOptions } from './options.js';
import { type RecordedForward, RecordedForwards } from './recorded-forwards.js';
import { StepClock, type StepTimings } from './step-timings.js';
import { type CycleContext, type CycleOutcome, SyncCycle } from './sync-cycle.js';

export class GradientSync {
  /** False inside noSync and while all-reduces are disabled: gradients add up locally. */
  isSyncing = true;
  isEnabled = true;
  timings: StepTimings | undefined;
  /** Of retained gradients, by bucket; as long-lived as they are. */
  buffers: readonly (Tensor | undefined)[] = [];
  readonly locals = new LocalGradients();
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
  /** In a static graph: what this rank's backwards reach. */
  #expectedReach: ReadonlySet<Tensor> | undefined;
  #pass: Pass | undefined;
  #cycle: SyncCycle | undefined;
  #clock: StepClock | undefined;
  #forwardStartMs: number | undefined;
  #join: { readonly rounds: JoinRounds; readonly isScaledToActive: boolean } | undefined;
  #round: ReturnType<JoinRounds['announce']> | undefined;

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

  get isInJoin(): boolean {
    return this.#join !== undefined;
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
        return endingJob(this.#group, 'ddp initialize', body);
      },
      { isSerial: true },
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
      this.#lanes = await this.#openLanes(this.#control);
    }
    this.#context = { device: this.#device, options: this.#options, maxElements };
  }

  async #openLanes(control: ProcessGroup): Promise<readonly ProcessGroup[]> {
    const { numStreams, communicators } = this.#options;
    if (numStreams === 1) {
      return [control];
    }
    if (communicators !== undefined) {
      return communicators;
    }
    const lanes: ProcessGroup[] = [];
    for (let i = 0; i < numStreams; i++) {
      lanes.push(await this.#group.split(0));
    }
    return lanes;
  }

  /** Runs a collective of the wrapper in its turn on the first lane. */
  inTurn<T>(body: (group: ProcessGroup) => Promise<T>): Promise<T> {
    const group = this.#control!;
    return group.starts.enqueue(
      Promise.resolve(),
      () => endingJob(group, 'ddp', () => body(group)),
      { isSerial: true },
    );
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
    this.#expectedReach = undefined;
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
    if (!this.isReducing || this.isInJoin || this.#control === undefined) {
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
    this.#requireReached(pass.reached);
    this.#clock = new StepClock(this.#forwardStartMs);
    this.#forwardStartMs = undefined;
    this.#round = this.#join?.rounds.announce('backward');
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

  /**
   * A backward has failed, before it reached this wrapper or after. Where it would have been reduced the
   * others wait for it.
   */
  fail(error: unknown): void {
    if (this.#context === undefined || !this.isReducing) {
      return;
    }
    endJob(this.#group, 'ddp backward', this.#cycle?.failure?.error ?? error);
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
    const numLeft = this.isInJoin ? 0 : this.#forwards.countLeft(number);
    const left = numLeft === 0 ? '' : ` (${numLeft} forwards left without a backward)`;
    return `ddp ${wrapper} backward ${number}${left}`;
  }

  #beginCycle(
    reached: ReadonlySet<Tensor>,
    clock: StepClock,
    locals: LocalGradients = this.locals,
  ): SyncCycle {
    const agreed = Promise.all([this.#round, this.#agree()]);
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
      onFailure: (error) => endJob(this.#group, 'ddp backward', error),
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
    const round = await this.#round;
    const used = await this.#exchangeUsed(cycle);
    const structure = await this.#learn(cycle, used, round?.active[0] ?? 0);
    const outcome: CycleOutcome = {
      postdivide: this.#postdivide(round?.active.length),
      isUsed: (index) => !isSpectator && used?.[index] !== 0,
    };
    this.buffers = await cycle.receive(outcome);
    if (structure !== undefined) {
      this.#replacePlan(cycle.plan.active, structure, { isLearned: true });
    }
  }

  #postdivide(numActive: number | undefined): number {
    const { postdivide, predivide } = this.#options;
    if (this.#join?.isScaledToActive !== true || postdivide === 1) {
      return postdivide;
    }
    return numActive! / predivide;
  }

  /** A byte for each active parameter: 0 where no rank has a gradient; undefined: all have. */
  async #exchangeUsed(cycle: SyncCycle): Promise<Uint8Array | undefined> {
    const { isFindingUnused, isStaticGraph } = this.#options;
    if (!isFindingUnused && !(isStaticGraph && !cycle.plan.isLearned)) {
      return undefined;
    }
    const used = cycle.usedHere();
    if (this.#control === undefined || used.length === 0) {
      return used;
    }
    await this.inTurn((group) =>
      group.allReduce(used, used, {
        dtype: 'u8',
        op: 'max',
        tag: 'ddp used parameters',
        identity: `${cycle.identity} used parameters`,
      }),
    );
    return used;
  }

  /** The order of arrival on `leader`, as buckets; undefined where there is nothing to learn. */
  async #learn(
    cycle: SyncCycle,
    used: Uint8Array | undefined,
    leader: number,
  ): Promise<number[][] | undefined> {
    const { isDelayed, isStaticGraph } = this.#options;
    const { active, isLearned } = cycle.plan;
    if (isLearned || active.length === 0 || (isDelayed && !isStaticGraph)) {
      return undefined;
    }
    if (isStaticGraph) {
      this.#expectedReach = new Set(this.#pass?.reached);
    }
    const arrived = isDelayed ? active.map((_, i) => i) : cycle.arrived;
    const isUsed = (index: number) => !isStaticGraph || used?.[index] !== 0;
    const own = learnStructure(active, arrived, this.#context!, isUsed);
    if (this.#control === undefined) {
      return own;
    }
    const words = encodeStructure(own, active.length);
    const bytes = new Uint8Array(words.buffer);
    await this.inTurn((group) =>
      group.broadcast(bytes, {
        root: leader,
        dtype: 'u32',
        tag: 'ddp buckets',
        identity: `${cycle.identity} buckets`,
      }),
    );
    return decodeStructure(words, active.length);
  }

  /** @throws {DdpUnusedParameterError} for what the ranks would wait for in vain */
  #requireReached(reached: ReadonlySet<Tensor>): void {
    const { isFindingUnused, isStaticGraph } = this.#options;
    const { active } = this.#plan!;
    const isMissing = ({ tensor }: ActiveParameter) =>
      !reached.has(tensor) && !this.locals.has(tensor);
    let wrong: readonly ActiveParameter[] = [];
    let problem = '';
    if (isStaticGraph) {
      const expected = this.#expectedReach;
      if (expected === undefined) {
        return;
      }
      wrong = active.filter(({ tensor }) => reached.has(tensor) !== expected.has(tensor));
      problem =
        'expected a backward of the same graph as the first (staticGraph), got another use of';
    } else if (!isFindingUnused) {
      wrong = active.filter(isMissing);
      problem = 'expected a backward that reaches every trainable parameter, got none for';
    }
    if (wrong.length === 0) {
      return;
    }
    const paths = wrong.map(({ path }) => path);
    const advice = isStaticGraph
      ? 'Leave staticGraph out.'
      : 'Use them in forward, freeze them, or set findUnusedParameters: true.';
    const { rank, worldSize } = this.#group;
    const message = `rank ${rank}/${worldSize} ddp backward: ${problem} ${paths.join(', ')}. ${advice}`;
    throw new DdpUnusedParameterError(message, paths);
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
    options: {
      readonly isScaledToActive: boolean;
      readonly onBuffers: (root: number) => Promise<void>;
    },
  ): Promise<number> {
    if (this.#control === undefined) {
      await body();
      return 0;
    }
    const rounds = new JoinRounds(this.#control);
    this.#join = { rounds, isScaledToActive: options.isScaledToActive };
    try {
      await body();
      await this.#followOthers(rounds, options.onBuffers);
    } catch (error) {
      endJob(this.#group, 'ddp join', error);
      throw error;
    } finally {
      this.#join = undefined;
      this.#round = undefined;
    }
    return rounds.lastActive;
  }

  /** Inside join: tells the others that buffers come next. The rank that they come from. */
  async announceBuffers(): Promise<number> {
    const round = await this.#join?.rounds.announce('buffers');
    return round?.active[0] ?? 0;
  }

  /** What ranks compare of buffers: how many backwards there were before. */
  get buffersIdentity(): string {
    return `ddp ${this.#wrapper} buffers after backward ${this.#numBackwards}`;
  }

  async #followOthers(
    rounds: JoinRounds,
    onBuffers: (root: number) => Promise<void>,
  ): Promise<void> {
    this.refresh();
    for (;;) {
      this.#round = rounds.announce(undefined);
      const { active, event } = await this.#round;
      if (event === undefined) {
        return;
      }
      if (event === 'buffers') {
        await onBuffers(active[0]!);
        continue;
      }
      this.#numBackwards += 1;
      // Zeros alone: what a noSync of this rank has left is not the others'.
      const cycle = this.#beginCycle(new Set(), new StepClock(undefined), new LocalGradients());
      await this.#finishCycle(cycle, { isSpectator: true });
    }
  }
}

/** What ranks compare. */
export function describeParameter({ path, tensor }: ActiveParameter): string {
  return `${path} ${tensor.dtype} [${tensor.shape.join(', ')}]`;
}
