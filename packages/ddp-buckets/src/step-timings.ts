// Times how long a step computed and communicated, and how much of the communication was not hidden
// behind computation, in milliseconds of this rank's host.

/** Where the time of a training step went, in milliseconds. */
export interface StepTimings {
  /** From the first forward since the last backward until the last gradient was on the host. */
  readonly computeMs: number;
  /** The time during which any bucket was being added up over ranks. */
  readonly communicationMs: number;
  /**
   * The part of communicationMs after all gradients were on the host, which overlap could not hide.
   */
  readonly exposedCommunicationMs: number;
  /** From the first gradient to the end of backward, communication included. */
  readonly backwardMs: number;
}

/** The clock of one step. */
export class StepClock {
  readonly #startMs: number;
  readonly #backwardStartMs = performance.now();
  readonly #intervals: { readonly startMs: number; readonly endMs: number }[] = [];
  #computedMs = 0;

  /** Starts the clock; it is made when backward begins. */
  constructor(forwardStartMs: number | undefined) {
    this.#startMs = forwardStartMs ?? this.#backwardStartMs;
  }

  /** Notes that a bucket's gradients have arrived on the host, and returns them. */
  readonly noteRead = (bytes: Uint8Array): Uint8Array => {
    this.#computedMs = performance.now();
    return bytes;
  };

  /** Notes that a bucket's communication starts. The returned function notes its end. */
  beginCommunication(): () => void {
    const startMs = performance.now();
    return () => {
      this.#intervals.push({ startMs, endMs: performance.now() });
    };
  }

  /** Notes that the host has queued all of backward. */
  noteQueued(): void {
    this.#computedMs = Math.max(this.#computedMs, performance.now());
  }

  timings(): StepTimings {
    const sorted = this.#intervals.toSorted((a, b) => a.startMs - b.startMs);
    let communicationMs = 0;
    let exposedCommunicationMs = 0;
    let coveredMs = Number.NEGATIVE_INFINITY;
    for (const { startMs, endMs } of sorted) {
      const from = Math.max(startMs, coveredMs);
      if (endMs <= from) {
        continue;
      }
      communicationMs += endMs - from;
      exposedCommunicationMs += Math.max(0, endMs - Math.max(from, this.#computedMs));
      coveredMs = endMs;
    }
    return {
      computeMs: this.#computedMs - this.#startMs,
      communicationMs,
      exposedCommunicationMs,
      backwardMs: performance.now() - this.#backwardStartMs,
    };
  }
}
