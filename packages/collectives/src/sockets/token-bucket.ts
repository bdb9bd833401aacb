// Limits how often something may happen.

export class TokenBucket {
  readonly #rate: number;
  #tokens: number;
  #filledAt = performance.now();

  /** @param rate the tokens by which it fills in a second, and which it holds at most */
  constructor(rate: number) {
    this.#rate = rate;
    this.#tokens = rate;
  }

  /** Takes a token. False where there is none. */
  take(): boolean {
    if (this.#fill() < 1) {
      return false;
    }
    this.#tokens--;
    return true;
  }

  isFull(): boolean {
    return this.#fill() === this.#rate;
  }

  #fill(): number {
    const now = performance.now();
    const dripped = ((now - this.#filledAt) / 1000) * this.#rate;
    this.#tokens = Math.min(this.#rate, this.#tokens + dripped);
    this.#filledAt = now;
    return this.#tokens;
  }
}
