// The times at which a machine without a clock wants to be asked again.

export class Deadlines {
  #nextMs = Infinity;

  /** The first of the times that were asked for and have not come. */
  get nextMs(): number {
    return this.#nextMs;
  }

  /** Forgets all of them. */
  clear(): void {
    this.#nextMs = Infinity;
  }

  /** Whether a time has come; if not, it is kept. */
  isPast(limitMs: number, nowMs: number): boolean {
    if (nowMs >= limitMs) {
      return true;
    }
    this.#nextMs = Math.min(this.#nextMs, limitMs);
    return false;
  }
}
