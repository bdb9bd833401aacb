// Decides when the parameters of each unit are made present and dropped: sharding gathers them,
// offload loads them. Starts follow the order in which units are entered, recorded from the step
// before, so they are the same on all ranks; promises never decide.
//
// Note [prefetch order]
// Entering the k-th unit of a forward starts it, then what followed it in the last forward that began
// with the same unit, as long as the bytes started but not yet used stay under the cap. A unit that
// comes out of order is started when it is entered, and the rest of that forward runs without
// prediction. In backward units come in the reverse of the order in which their modules returned,
// without the uses that no gradient reaches. A demanded unit may pass the cap, so nothing waits for
// room: no deadlock.
//
// Note [uses without a graph]
// Of a module that ran without recording, inside a forward that records, backward may need the
// unit again (a checkpoint runs it a second time) or not (a frozen teacher). What the last backward
// did decides.

/** How units become present. All calls come from one strand, in program order. */
export interface Residency<Unit, Ticket> {
  /** Bytes that a start puts in flight. */
  bytes(unit: Unit): number;
  /** Whether the unit's parameters are present and current. */
  isPresent(unit: Unit): boolean;
  /** Begins to make it present; never waits. Equal order on all ranks. */
  start(unit: Unit): Ticket;
  /** Waits for a start and makes the parameters present. */
  finish(unit: Unit, ticket: Ticket): Promise<void>;
  /** Frees the unit's full parameters; nothing when they are absent. */
  drop(unit: Unit): void;
}

export type UnitPhase = 'forward' | 'backward';

/** How a module has run, for the order of backward. */
export type UseKind =
  | 'recorded' // gradients may reach it
  | 'unreached' // recorded, but none can
  | 'unrecorded'; // see Note [uses without a graph]

/**
 * Uses kept for a backward that may still come; more are forwards that none followed. A model of
 * 1000 units, some forwards long.
 */
const MAX_USES = 8192;

/** One for a tree of units, driven by its root. */
export class UnitScheduler<Unit, Ticket> {
  readonly #residency: Residency<Unit, Ticket>;
  readonly #capBytes: number;
  readonly #inFlight = new Map<Unit, Ticket>();
  #inFlightBytes = 0;
  /** Orders of forwards by the unit they began with. */
  readonly #orders = new Map<Unit, readonly Unit[]>();
  #forward: Unit[] = [];
  #isPredicted = true;
  /** Uses since the last backward, as their modules returned. */
  #uses: { readonly unit: Unit; readonly kind: UseKind }[] = [];
  #hasEnded = false;
  #isRecording = false;
  /** What backward is expected to enter, in order, and how far it has come. */
  #backward: readonly Unit[] = [];
  #position = 0;
  #isExact = false;
  #enteredInBackward = new Set<Unit>();
  #enteredBefore: ReadonlySet<Unit> = new Set();

  /** @param options.capBytes most bytes in flight ahead of use; Infinity for no limit */
  constructor(residency: Residency<Unit, Ticket>, options: { readonly capBytes: number }) {
    this.#residency = residency;
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

  /** The unit's module has run in forward. */
  leave(unit: Unit, kind: UseKind): void {
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
    this.#uses.push({ unit, kind });
  }

  /** A backward through what has run since the last one begins. */
  beginBackward(): void {
    const before = this.#enteredInBackward;
    if (before.size > 0) {
      this.#enteredBefore = before;
    }
    this.#enteredInBackward = new Set();
    this.#isExact = false;
    this.#expect(({ unit, kind }) =>
      kind === 'unrecorded' ? this.#enteredBefore.has(unit) : kind === 'recorded',
    );
  }

  /**
   * Has this backward start every use that `isNeeded`, in the expected order, whether it is entered
   * here or not: ranks whose gradients take different ways start the same. Before the first enter.
   */
  requireInBackward(isNeeded: (unit: Unit, kind: UseKind) => boolean): void {
    this.#isExact = true;
    this.#expect(({ unit, kind }) => isNeeded(unit, kind));
  }

  /** Whether requireInBackward has this backward make the unit present for a use still to come. */
  isRequired(unit: Unit): boolean {
    return this.#isExact && this.#backward.includes(unit, this.#position);
  }

  /** The backward's nodes have all run: starts what is required of it and was not entered. */
  endBackward(): void {
    if (this.#isExact) {
      for (const unit of this.#backward.slice(this.#position)) {
        this.#start(unit);
      }
    }
    this.#isExact = false;
    this.#hasEnded = true; // there may be more backwards through these uses
  }

  /** Makes the unit present, having started what probably follows. */
  async enter(unit: Unit, phase: UnitPhase): Promise<void> {
    const following = phase === 'forward' ? this.#noteForward(unit) : this.#noteBackward(unit);
    this.#start(unit);
    const ticket = this.#take(unit); // in use from here on, no longer ahead of it
    for (const next of following) {
      if (next === unit || this.#inFlight.has(next) || this.#residency.isPresent(next)) {
        continue;
      }
      if (this.#inFlightBytes + this.#residency.bytes(next) > this.#capBytes) {
        break;
      }
      this.#start(next);
    }
    if (ticket !== undefined) {
      await this.#residency.finish(unit, ticket);
    }
  }

  /** Ends a forward or a step: what was started and never used is waited for and dropped. */
  async settle(): Promise<void> {
    for (const unit of [...this.#inFlight.keys()]) {
      await this.#residency.finish(unit, this.#take(unit)!);
      this.#residency.drop(unit);
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

  #start(unit: Unit): void {
    if (this.#inFlight.has(unit) || this.#residency.isPresent(unit)) {
      return;
    }
    this.#inFlight.set(unit, this.#residency.start(unit));
    this.#inFlightBytes += this.#residency.bytes(unit);
  }

  #take(unit: Unit): Ticket | undefined {
    const ticket = this.#inFlight.get(unit);
    if (this.#inFlight.delete(unit)) {
      this.#inFlightBytes -= this.#residency.bytes(unit);
    }
    return ticket;
  }

  #expect(isNeeded: (use: { readonly unit: Unit; readonly kind: UseKind }) => boolean): void {
    this.#backward = this.#uses
      .filter(isNeeded)
      .map(({ unit }) => unit)
      .reverse();
    this.#position = 0;
  }

  #noteForward(unit: Unit): readonly Unit[] {
    const index = this.#forward.length;
    this.#forward.push(unit);
    const order = this.#orders.get(this.#forward[0]!) ?? [];
    this.#isPredicted &&= order[index] === unit;
    return this.#isPredicted ? order.slice(index + 1) : [];
  }

  #noteBackward(unit: Unit): readonly Unit[] {
    this.#enteredInBackward.add(unit);
    // A module with several outputs is entered for each: the same use again.
    const isAgain = this.#backward[this.#position - 1] === unit;
    const index = isAgain ? -1 : this.#backward.indexOf(unit, this.#position);
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
