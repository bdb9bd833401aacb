// Measures how long a peer has been silent, by this rank's own clock and by turns of its event
// loop: what arrived while this rank was busy or stopped has to be read before the peer is judged.

/**
 * The number of timer turns for which a lost peer has been silent. It guards against a machine that
 * slept and wakes up with late clocks.
 */
const MIN_SILENT_TICKS = 4;

export class Pulse {
  readonly #limitMs: number;
  #silentTicks = 0;
  #heardAt: number;

  /** @param limitMs the silence after which the peer counts as lost */
  constructor(limitMs: number, now: number) {
    this.#limitMs = limitMs;
    this.#heardAt = now;
  }

  /**
   * Called at each turn of the timer, with whether the peer has sent anything since the last one.
   * True where the peer counts as lost.
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
