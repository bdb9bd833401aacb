// How long a peer has been silent, by this rank's own clock and turns of its event loop: what arrived
// while this rank was busy or stopped has to be read before the peer is judged.

/** Turns of the timer without a word, at least: a machine that slept wakes up with all its clocks late. */
const MIN_SILENT_TICKS = 4;

export class Pulse {
  readonly #limitMs: number;
  #silentTicks = 0;
  #heardAt: number;

  /** `limitMs`: the silence after which the peer counts as lost. */
  constructor(limitMs: number, now: number) {
    this.#limitMs = limitMs;
    this.#heardAt = now;
  }

  /** A turn of the timer, and whether the peer has spoken since the last; whether it counts as lost. */
  isLost(hasSpoken: boolean, now: number): boolean {
    if (hasSpoken) {
      this.#silentTicks = 0;
      this.#heardAt = now;
      return false;
    }
    this.#silentTicks++;
    return this.#silentTicks >= MIN_SILENT_TICKS && now - this.#heardAt > this.#limitMs;
  }
}
