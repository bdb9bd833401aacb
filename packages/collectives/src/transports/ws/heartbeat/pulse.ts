// Measures how long a peer has been silent, by this rank's own clock and by turns of its event
// loop: what arrived while this rank was busy or stopped has to be read before the peer is judged.

/**
 * A lost peer has been silent for so many turns of the timer: a machine that slept wakes up with
 * late clocks.
 */
const MIN_SILENT_TICKS = 4;

export class Pulse {
  readonly #limitMs: number;
  #silentTicks = 0;
  #heardAt: number;

  /** `limitMs` is the silence after which the peer counts as lost. */
  constructor(limitMs: number, now: number) {
    this.#limitMs = limitMs;
    this.#heardAt = now;
  }

  /**
   * Hears at each turn of the timer whether the peer has spoken since the last. True where it
   * counts as lost.
   */
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
