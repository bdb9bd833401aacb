// Turns of the event loop, for work that must not hold it up: copies and sums ask between slices.
// The time that counts is that of all work since the loop last went round, not that of one call, so
// the ranks of a process share one Turns.

import type { Clock } from '../clock.js';

/**
 * Half of the 20 ms that no callback of ours may take: a slice more, and a slow machine, fit in.
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
   * Undefined where work may go on. Else it has to wait for the promise and ask again, since others
   * may have had the turn meanwhile.
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

  /** Resolves when there is time. */
  async wait(): Promise<void> {
    for (let end = this.next(); end !== undefined; end = this.next()) {
      await end;
    }
  }
}
