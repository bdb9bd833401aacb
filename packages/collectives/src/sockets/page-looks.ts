// Decides when a page's sockets look at how much of what they sent has left, because no event tells
// a page. The timers of a hidden page fire once a second, and later once a minute, but those of its
// workers go on: so the heartbeat worker keeps the time.

/** The milliseconds between looks at a full buffer; browsers round timers up to about 4. */
const LOOK_MS = 4;

/** Asks a worker to answer by `PageLooks.run` after so many milliseconds. */
type AskWorker = (afterMs: number) => void;

export class PageLooks {
  readonly #looks = new Set<() => void>();
  #askWorker: AskWorker | undefined;

  /** Calls `look` once, a moment later. */
  add(look: () => void): void {
    this.#looks.add(look);
    if (this.#looks.size === 1) {
      this.#ask();
    }
  }

  /**
   * Sets the worker that keeps the time from now on; where it is undefined, the page's own timer
   * does.
   */
  setWorker(askWorker: AskWorker | undefined): void {
    this.#askWorker = askWorker;
    if (this.#looks.size > 0) {
      this.#ask(); // who was asked before may answer late or never
    }
  }

  /** Calls all looks that wait, because the moment has passed. */
  readonly run = (): void => {
    const looks = [...this.#looks];
    this.#looks.clear();
    for (const look of looks) {
      look();
    }
  };

  #ask(): void {
    if (this.#askWorker === undefined) {
      setTimeout(this.run, LOOK_MS);
    } else {
      this.#askWorker(LOOK_MS);
    }
  }
}
