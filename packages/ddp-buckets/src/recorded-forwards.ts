// Counts the forwards that had no backward. A rank that leaves a batch out after its forward is a
// batch ahead of the others from then on, and nothing but this count tells it from them.

/** A training forward whose graph was recorded. */
export interface RecordedForward {
  /** How many backwards had begun before it. */
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

  /** Hears that a backward has reached the forward's output. */
  reach(forward: RecordedForward): void {
    this.#waiting.delete(forward);
  }

  /**
   * How many were left without a backward so far, when backward `number` (from 1) begins. Those
   * after the backward before may be in this one, or in the next.
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
