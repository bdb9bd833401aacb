// Says when a page's sockets look at what has left them, since nobody tells a page. A hidden page's
// timers fire once a second, and later once a minute, but those of its workers go on: the heartbeat
// worker keeps the time.

/** Milliseconds between looks at a full buffer; browsers round timers up to about 4. */
const LOOK_MS = 4;

/** Asks a worker, who answers by `PageLooks.run` so many milliseconds later. */
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

  /** Names who keeps the time from here on; where it is undefined, the page's own timer does. */
  setWorker(askWorker: AskWorker | undefined): void {
    this.#askWorker = askWorker;
    if (this.#looks.size > 0) {
      this.#ask(); // who was asked before may answer late or never
    }
  }

  /** Calls all looks that wait, since the moment is over. */
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
