// Decides when the parameters of each stage are made present and when they are dropped. A stage is
// a sharded instance or a slice of layers; sharding makes it present by gathering, offload by
// loading. Stages are started in the order in which they were entered in the step before. That
// order is the same on all ranks, whereas the moment at which a promise settles is not, so promises
// never decide anything here.
//
// Note [prefetch order]
// Entering the k-th stage of a forward starts that stage, and then the stages that followed it in
// the last forward that began with the same stage, as long as the bytes that are started and not
// yet used stay under the cap. If stages were entered as a, b, c, d, then entering b starts b, c
// and d, as far as the cap allows. A stage that comes out of order is started when it is entered,
// and the rest of that forward is not predicted. Backward is expected to enter stages in the
// reverse of the order in which their modules returned, without the uses that no gradient reaches.
// A stage that is entered may exceed the cap, so nothing ever waits for room, and there is no
// deadlock.
//
// Note [uses without a graph]
// A module may run without recording inside a forward that records. Backward needs its stage again
// if a checkpoint ran it, since that runs it a second time, and does not need it if it is a frozen
// teacher. The scheduler expects what the last backward did.

/**
 * How a stage gets its values. The scheduler makes all calls one after another, in program order.
 */
export interface UnitLoader<Stage, Ticket> {
  /** The bytes that a start puts in flight. */
  bytes(stage: Stage): number;
  /** Whether the stage's parameters are present and current. */
  isPresent(stage: Stage): boolean;
  /**
   * Begins to make the stage present, without waiting. The order of starts is the same on all
   * ranks.
   */
  start(stage: Stage): Ticket;
  /** Waits for a start and makes the stage's parameters present. */
  finish(stage: Stage, ticket: Ticket): Promise<void>;
  /** Frees the stage's full parameters. Where they are absent it does nothing. */
  drop(stage: Stage): void;
}

/** The half of a step in which a stage is used. */
export type StagePhase = 'forward' | 'backward';

/** How a module has run, which tells whether backward will need its stage. */
export type UseKind =
  | 'recorded' // gradients may reach it
  | 'unreached' // recorded, but none can
  | 'unrecorded'; // see Note [uses without a graph]

/**
 * How many uses are kept for a backward that may still come. Beyond it the older half is dropped,
 * since it belongs to forwards that no backward followed. The number is enough for several forwards
 * of a model with 1000 stages.
 */
const MAX_USES = 8192;

/** The scheduler of a tree of stages. The root of the tree drives it. */
export class StageScheduler<Stage, Ticket> {
  readonly #loader: UnitLoader<Stage, Ticket>;
  readonly #capBytes: number;
  readonly #inFlight = new Map<Stage, Ticket>();
  #inFlightBytes = 0;
  /** The orders of earlier forwards. The key is the stage with which a forward began. */
  readonly #orders = new Map<Stage, readonly Stage[]>();
  #forward: Stage[] = [];
  #isPredicted = true;
  /** The uses since the last backward, in the order in which their modules returned. */
  #uses: { readonly stage: Stage; readonly kind: UseKind }[] = [];
  #hasEnded = false;
  #isRecording = false;
  /**
   * The stages that backward is expected to enter, in order. `#position` is how far it has come.
   */
  #backward: readonly Stage[] = [];
  #position = 0;
  #isExact = false;
  #enteredInBackward = new Set<Stage>();
  #enteredBefore: ReadonlySet<Stage> = new Set();

  /** @param options.capBytes the most bytes in flight ahead of use; Infinity for no limit */
  constructor(loader: UnitLoader<Stage, Ticket>, options: { readonly capBytes: number }) {
    this.#loader = loader;
    this.#capBytes = options.capBytes;
  }

  /** The bytes that are started and not yet used. */
  get inFlightBytes(): number {
    return this.#inFlightBytes;
  }

  /**
   * Begins a forward that is not part of another one.
   * @param options.isRecording whether a backward may follow; default true
   */
  beginForward(options: { readonly isRecording?: boolean } = {}): void {
    const [first] = this.#forward;
    if (first !== undefined) {
      this.#orders.set(first, this.#forward);
    }
    this.#forward = [];
    this.#isPredicted = true;
    this.#isRecording = options.isRecording ?? true;
  }

  /** Records that the stage's module has returned from its forward. */
  leave(stage: Stage, kind: UseKind): void {
    if (!this.#isRecording) {
      return;
    }
    if (this.#hasEnded) {
      this.#uses = []; // these belong to the backward that has ended
    }
    this.#hasEnded = false;
    if (this.#uses.length >= MAX_USES) {
      this.#uses = this.#uses.slice(MAX_USES / 2);
    }
    this.#uses.push({ stage, kind });
  }

  /** Begins a backward through what has run since the last one. */
  beginBackward(): void {
    const before = this.#enteredInBackward;
    if (before.size > 0) {
      this.#enteredBefore = before;
    }
    this.#enteredInBackward = new Set();
    this.#isExact = false;
    this.#expect(({ stage, kind }) =>
      kind === 'unrecorded' ? this.#enteredBefore.has(stage) : kind === 'recorded',
    );
  }

  /**
   * Makes this backward start each use for which `isNeeded` is true, in the expected order, even if
   * this rank never enters it. So ranks whose gradients take different ways still start the same
   * stages. Call it before the first enter.
   */
  requireInBackward(isNeeded: (stage: Stage, kind: UseKind) => boolean): void {
    this.#isExact = true;
    this.#expect(({ stage, kind }) => isNeeded(stage, kind));
  }

  /**
   * Whether requireInBackward makes this backward start the stage for a use that is still to come.
   */
  isRequired(stage: Stage): boolean {
    return this.#isExact && this.#backward.includes(stage, this.#position);
  }

  /**
   * Ends a backward whose nodes have all run. Stages that it requires and has not entered are
   * started now.
   */
  endBackward(): void {
    if (this.#isExact) {
      for (const stage of this.#backward.slice(this.#position)) {
        this.#start(stage);
      }
    }
    this.#isExact = false;
    this.#hasEnded = true; // further backwards may go through the same uses
  }

  /** Makes the stage present. Before it waits, it starts the stages that probably follow. */
  async enter(stage: Stage, phase: StagePhase): Promise<void> {
    const following = phase === 'forward' ? this.#noteForward(stage) : this.#noteBackward(stage);
    this.#start(stage);
    const ticket = this.#take(stage); // from here on it is in use, and no longer ahead of it
    for (const next of following) {
      if (next === stage || this.#inFlight.has(next) || this.#loader.isPresent(next)) {
        continue;
      }
      if (this.#inFlightBytes + this.#loader.bytes(next) > this.#capBytes) {
        break;
      }
      this.#start(next);
    }
    if (ticket !== undefined) {
      await this.#loader.finish(stage, ticket);
    }
  }

  /**
   * Ends a forward or a step. Stages that were started and never used are waited for and dropped.
   */
  async settle(): Promise<void> {
    for (const stage of [...this.#inFlight.keys()]) {
      await this.#loader.finish(stage, this.#take(stage)!);
      this.#loader.drop(stage);
    }
  }

  /** After a failure, forgets what is in flight and what has run. */
  reset(): void {
    this.#inFlight.clear();
    this.#inFlightBytes = 0;
    this.#forward = [];
    this.#uses = [];
    this.#backward = [];
    this.#isExact = false;
  }

  #start(stage: Stage): void {
    if (this.#inFlight.has(stage) || this.#loader.isPresent(stage)) {
      return;
    }
    this.#inFlight.set(stage, this.#loader.start(stage));
    this.#inFlightBytes += this.#loader.bytes(stage);
  }

  #take(stage: Stage): Ticket | undefined {
    const ticket = this.#inFlight.get(stage);
    if (this.#inFlight.delete(stage)) {
      this.#inFlightBytes -= this.#loader.bytes(stage);
    }
    return ticket;
  }

  #expect(isNeeded: (use: { readonly stage: Stage; readonly kind: UseKind }) => boolean): void {
    this.#backward = this.#uses
      .filter(isNeeded)
      .map(({ stage }) => stage)
      .reverse();
    this.#position = 0;
  }

  #noteForward(stage: Stage): readonly Stage[] {
    const index = this.#forward.length;
    this.#forward.push(stage);
    const order = this.#orders.get(this.#forward[0]!) ?? [];
    this.#isPredicted &&= order[index] === stage;
    return this.#isPredicted ? order.slice(index + 1) : [];
  }

  #noteBackward(stage: Stage): readonly Stage[] {
    this.#enteredInBackward.add(stage);
    // A module with several outputs is entered once for each of them, which is the same use again.
    const isAgain = this.#backward[this.#position - 1] === stage;
    const index = isAgain ? -1 : this.#backward.indexOf(stage, this.#position);
    if (index >= 0) {
      if (this.#isExact) {
        for (const passed of this.#backward.slice(this.#position, index)) {
          this.#start(passed);
        }
      }
      this.#position = index + 1;
    }
    return this.#backward.slice(this.#position);
  }
}
