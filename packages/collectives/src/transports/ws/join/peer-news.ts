// Lets several callers wait for what peers bring about: a connection that comes, or a message.

export class PeerNews {
  readonly #waiting = new Set<() => void>();

  /** Resolves when `isThere` is true; it is asked at once, and again after each `announce`. */
  async until(isThere: () => boolean): Promise<void> {
    while (!isThere()) {
      await new Promise<void>((resolve) => this.#waiting.add(resolve));
    }
  }

  /** Notes that a peer has come or told something. */
  announce(): void {
    for (const resolve of this.#waiting) {
      resolve();
    }
    this.#waiting.clear();
  }
}
