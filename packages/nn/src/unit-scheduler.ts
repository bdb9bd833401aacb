// Decides when the parameters of each unit are made present and dropped: sharding gathers them,
// offload loads them. Starts follow the order in which units are entered, recorded from the step
// before, so they are the same on all ranks; promises never decide.
//
// Note [prefetch order]
// Entering the k-th unit of a forward starts it, then what followed it in the last forward, as
// long as the bytes started but not yet used stay under the cap. In backward what follows is the
// reverse of the current forward, without what was entered already or takes no part. A unit that
// comes out of order is started when it is entered, and the rest of that forward runs without
// prediction. A demanded unit may pass the cap, so nothing waits for room: no deadlock.

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

/** One for a tree of units, driven by its root. */
export class UnitScheduler<Unit, Ticket> {
  readonly #residency: Residency<Unit, Ticket>;
  readonly #capBytes: number;
  readonly #inFlight = new Map<Unit, Ticket>();
  #inFlightBytes = 0;
  #lastForward: Unit[] = [];
  #forward: Unit[] = [];
  readonly #entered = new Set<Unit>();
  readonly #forwardOnly = new Set<Unit>();
  #isPredicted = true;

  /** @param options.capBytes most bytes in flight ahead of use; Infinity for no limit */
  constructor(residency: Residency<Unit, Ticket>, options: { readonly capBytes: number }) {
    this.#residency = residency;
    this.#capBytes = options.capBytes;
  }

  /** Bytes started and not yet used. */
  get inFlightBytes(): number {
    return this.#inFlightBytes;
  }

  /** A new forward of the root begins. */
  beginForward(): void {
    if (this.#forward.length > 0) this.#lastForward = this.#forward;
    this.#forward = [];
    this.#forwardOnly.clear();
    this.#isPredicted = true;
  }

  /** No gradient will reach the unit's use in this forward: backward does not start it ahead. */
  skipInBackward(unit: Unit): void {
    this.#forwardOnly.add(unit);
  }

  /** A backward through the last forward begins. */
  beginBackward(): void {
    this.#entered.clear();
  }

  /** Makes the unit present, having started what probably follows. */
  async enter(unit: Unit, phase: UnitPhase): Promise<void> {
    const following = phase === 'forward' ? this.#noteForward(unit) : this.#noteBackward(unit);
    this.#start(unit);
    const ticket = this.#take(unit); // in use from here on, no longer ahead of it
    for (const next of following) {
      if (next === unit || this.#inFlight.has(next) || this.#residency.isPresent(next)) continue;
      if (this.#inFlightBytes + this.#residency.bytes(next) > this.#capBytes) break;
      this.#start(next);
    }
    if (ticket !== undefined) await this.#residency.finish(unit, ticket);
  }

  /** Ends a forward or a step: what was started and never used is waited for and dropped. */
  async settle(): Promise<void> {
    for (const unit of [...this.#inFlight.keys()]) {
      await this.#residency.finish(unit, this.#take(unit)!);
      this.#residency.drop(unit);
    }
  }

  /** Forgets what is in flight, after a failure. */
  reset(): void {
    this.#inFlight.clear();
    this.#inFlightBytes = 0;
    this.#forward = [];
  }

  #start(unit: Unit): void {
    if (this.#inFlight.has(unit) || this.#residency.isPresent(unit)) return;
    this.#inFlight.set(unit, this.#residency.start(unit));
    this.#inFlightBytes += this.#residency.bytes(unit);
  }

  #take(unit: Unit): Ticket | undefined {
    const ticket = this.#inFlight.get(unit);
    if (this.#inFlight.delete(unit)) this.#inFlightBytes -= this.#residency.bytes(unit);
    return ticket;
  }

  #noteForward(unit: Unit): readonly Unit[] {
    const index = this.#forward.length;
    this.#forward.push(unit);
    this.#isPredicted &&= this.#lastForward[index] === unit;
    return this.#isPredicted ? this.#lastForward.slice(index + 1) : [];
  }

  #noteBackward(unit: Unit): readonly Unit[] {
    this.#entered.add(unit);
    const isAhead = (other: Unit) => !this.#entered.has(other) && !this.#forwardOnly.has(other);
    return this.#forward.filter(isAhead).reverse();
  }
}
