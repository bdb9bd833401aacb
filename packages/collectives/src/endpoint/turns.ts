// Turns of the event loop, for work that must not hold it up: copies and sums ask between slices.
// What counts is the time of all work since the loop last went round, not that of one call, so the
// ranks of a process share one Turns.

import type { Clock } from '../clock.js';

/**
 * Half of the 20 ms that no callback of ours may take, which leaves room for one slice more and for
 * a slow machine.
 */
const TURN_MS = 8;

export class Turns {
  readonly #clock: Clock;
  #startMs = 0;
  #end: Promise<void> | undefined;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /**
   * Undefined where work may go on. Otherwise the work has to wait for the promise and ask again,
   * because other work may have used up the turn meanwhile.
   */
  next(): Promise<void> | undefined {
    if (this.#end === undefined) {
      this.#startMs = this.#clock.now();
      this.#end = this.#clock.turn().then(() => {
        this.#end = undefined;
      });
      return undefined;
    }
    return this.#clock.now() - this.#startMs < TURN_MS ? undefined : this.#end;
  }

  /** Resolves when there is time to go on. */
  async wait(): Promise<void> {
    for (let end = this.next(); end !== undefined; end = this.next()) {
      await end;
    }
  }
}
