// The messages of one call that have not left yet.

import type { RankJob } from './rank-job.js';

/**
 * The time for onPeerLost to come after a rejected send. Usually both come at the same moment, when
 * the transport's link ends.
 */
const SEND_GRACE_MS = 1000;

export class PendingSends {
  readonly #job: RankJob;
  readonly #onProgress: () => void;
  #numUnsent = 0;
  #onSent: (() => void) | undefined;

  constructor(job: RankJob, onProgress: () => void) {
    this.#job = job;
    this.#onProgress = onProgress;
  }

  /** Resolves when the message to a world rank has left, or that rank has. */
  async add(to: number, sent: Promise<void>): Promise<void> {
    this.#numUnsent++;
    try {
      await sent;
    } catch (error) {
      await this.#afterSendFailed(to, error);
    }
    this.#onProgress();
    this.#numUnsent--;
    if (this.#numUnsent === 0) {
      this.#onSent?.();
    }
  }

  /** Resolves when everything that was sent may be changed. */
  async settled(): Promise<void> {
    if (this.#numUnsent > 0) {
      await new Promise<void>((resolve) => {
        this.#onSent = resolve;
      });
    }
  }

  /**
   * Waits after a rejected send. A transport that can't send usually knows why, and reports it
   * (onPeerLost, onPeerLeft) shortly before or after; then that report counts. Otherwise it is a
   * bug, which ends the job, too.
   */
  async #afterSendFailed(to: number, error: unknown): Promise<void> {
    const { left, clock } = this.#job;
    if (!left.has(to)) {
      await new Promise<void>((resolve) => clock.setTimer(SEND_GRACE_MS, resolve));
    }
    if (!left.has(to)) {
      this.#job.abort(error);
    }
  }
}
