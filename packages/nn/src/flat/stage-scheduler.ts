// Decides when the parameters of each stage (a sharded instance, a slice of layers) are made
// present and dropped: sharding gathers them, offload loads them. Starts follow the order in which
// stages are entered, recorded from the step before, so they are the same on all ranks; promises
// never decide.
//
// Note [prefetch order]
// Entering the k-th stage of a forward starts it, then what followed it in the last forward that
// began with the same stage, as long as the bytes started but not yet used stay under the cap. A
// stage that comes out of order is started when it is entered, and the rest of that forward runs
// without prediction. In backward stages come in the reverse of the order in which their modules
// returned, without the uses that no gradient reaches. A demanded stage may pass the cap, so
// nothing waits for room: no deadlock.
//
// Note [uses without a graph]
// Where a module ran without recording, inside a forward that records, backward may need the stage
// again (a checkpoint runs it a second time) or not (a frozen teacher). What the last backward did
// decides.

/** How a stage gets its values. All calls come from one strand, in program order. */
export interface UnitLoader<Stage, Ticket> {
  /** Bytes that a start puts in flight. */
  bytes(stage: Stage): number;
  /** Whether the stage's parameters are present and current. */
  isPresent(stage: Stage): boolean;
  /** Begins to make it present; never waits. Equal order on all ranks. */
  start(stage: Stage): Ticket;
  /** Waits for a start and makes the parameters present. */
  finish(stage: Stage, ticket: Ticket): Promise<void>;
  /** Frees the stage's full parameters; nothing when they are absent. */
  drop(stage: Stage): void;
}

/** The half of a step in which a stage is used. */
export type StagePhase = 'forward' | 'backward';

/** How a module has run, for the order of backward. */
export type UseKind =
  | 'recorded' // gradients may reach it
  | 'unreached' // recorded, but none can
  | 'unrecorded'; // see Note [uses without a graph]

/**
 * Uses kept for a backward that may still come; more are forwards that none followed. A model of
 * 1000 stages, some forwards long.
 */
const MAX_USES = 8192;

/** One for a tree of stages, driven by its root. */
export class StageScheduler<Stage, Ticket> {
  readonly #loader: UnitLoader<Stage, Ticket>;
  readonly #capBytes: number;
  readonly #inFlight = new Map<Stage, Ticket>();
  #inFlightBytes = 0;
  /** Orders of forwards by the stage they began with. */
  readonly #orders = new Map<Stage, readonly Stage[]>();
  #forward: Stage[] = [];
  #isPredicted = true;
  /** Uses since the last backward, as their modules returned. */
  #uses: { readonly stage: Stage; readonly kind: UseKind }[] = [];
  #hasEnded = false;
  #isRecording = false;
  /** What backward is expected to enter, in order, and how far it has come. */
  #backward: readonly Stage[] = [];
  #position = 0;
  #isExact = false;
  #enteredInBackward = new Set<Stage>();
  #enteredBefore: ReadonlySet<Stage> = new Set();

  /** @param options.capBytes most bytes in flight ahead of use; Infinity for no limit */
  constructor(loader: UnitLoader<Stage, Ticket>, options: { readonly capBytes: number }) {
    this.#loader = loader;
    this.#capBytes = options.capBytes;
  }

  /** Bytes started and not yet used. */
  get inFlightBytes(): number {
    return this.#inFlightBytes;
  }

  /**
   * A forward begins that is in no other.
   * @param options.isRecording whether a backward may follow. Default true.
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

  /** The stage's module has run in forward. */
  leave(stage: Stage, kind: UseKind): void {
    if (!this.#isRecording) {
      return;
    }
    if (this.#hasEnded) {
      this.#uses = []; // those before the backward that has ended
    }
    this.#hasEnded = false;
    if (this.#uses.length >= MAX_USES) {
      this.#uses = this.#uses.slice(MAX_USES / 2);
    }
    this.#uses.push({ stage, kind });
  }

  /** A backward through what has run since the last one begins. */
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
   * Has this backward start every use that `isNeeded`, in the expected order, whether it is entered
   * here or not: ranks whose gradients take different ways start the same. Before the first enter.
   */
  requireInBackward(isNeeded: (stage: Stage, kind: UseKind) => boolean): void {
    this.#isExact = true;
    this.#expect(({ stage, kind }) => isNeeded(stage, kind));
  }

  /** Whether requireInBackward has this backward make the stage present for a use still to come. */
  isRequired(stage: Stage): boolean {
    return this.#isExact && this.#backward.includes(stage, this.#position);
  }

  /** The backward's nodes have all run: starts what is required of it and was not entered. */
  endBackward(): void {
    if (this.#isExact) {
      for (const stage of this.#backward.slice(this.#position)) {
        this.#start(stage);
      }
    }
    this.#isExact = false;
    this.#hasEnded = true; // there may be more backwards through these uses
  }

  /** Makes the stage present, having started what probably follows. */
  async enter(stage: Stage, phase: StagePhase): Promise<void> {
    const following = phase === 'forward' ? this.#noteForward(stage) : this.#noteBackward(stage);
    this.#start(stage);
    const ticket = this.#take(stage); // in use from here on, no longer ahead of it
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

  /** Ends a forward or a step: what was started and never used is waited for and dropped. */
  async settle(): Promise<void> {
    for (const stage of [...this.#inFlight.keys()]) {
      await this.#loader.finish(stage, this.#take(stage)!);
      this.#loader.drop(stage);
    }
  }

  /** Forgets what is in flight and what has run, after a failure. */
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
    // A module with several outputs is entered for each: the same use again.
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
