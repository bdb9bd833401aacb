// Counts the forwards that had no backward. A rank that skips a batch after its forward is a batch
// ahead of the others from then on, and only this count shows it.

/** A training forward whose graph was recorded. */
export interface RecordedForward {
  /** The number of backwards that had begun before it. */
  readonly numBackwards: number;
}

export class RecordedForwards {
  readonly #waiting = new Set<RecordedForward>();
  #numLeft = 0;

  note(numBackwards: number): RecordedForward {
    const forward = { numBackwards };
    this.#waiting.add(forward);
    return forward;
  }

  /** Called when a backward has reached the forward's output. */
  reach(forward: RecordedForward): void {
    this.#waiting.delete(forward);
  }

  /**
   * The number of forwards that were left without a backward when backward `number` (counted from
   * 1) begins. Forwards after the previous backward don't count yet: this backward or the next one
   * may reach them.
   */
  countLeft(number: number): number {
    for (const forward of this.#waiting) {
      if (forward.numBackwards > number - 2) {
        continue;
      }
      this.#waiting.delete(forward);
      this.#numLeft += 1;
    }
    return this.#numLeft;
  }
}
