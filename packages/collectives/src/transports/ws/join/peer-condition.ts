// A condition on which several callers wait for what peers bring about: a connection that comes, or
// a message.

export class PeerCondition {
  readonly #waiting = new Set<() => void>();

  /** Resolves when `isThere` is true; it is asked at once, and again after each `notifyAll`. */
  async waitUntil(isThere: () => boolean): Promise<void> {
    while (!isThere()) {
      await new Promise<void>((resolve) => this.#waiting.add(resolve));
    }
  }

  /** Notes that a peer has come or told something. */
  notifyAll(): void {
    for (const resolve of this.#waiting) {
      resolve();
    }
    this.#waiting.clear();
  }
}
