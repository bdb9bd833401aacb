// The loop that moves the frames of all links of a rank: it looks at their rings while there is
// something to move, then watches for a while, and then sleeps until a peer rings.

import { yieldToEventLoop } from '@shardweave/dtypes';
import { Doorbell } from './doorbell.js';
import type { ShmLink } from './shm-link.js';

/**
 * The milliseconds of moving frames in one callback. The limit of a turn is 20 ms, and other work
 * needs its share of that.
 */
const LOOK_MS = 4;

export class Poller {
  readonly #doorbell: Doorbell;
  readonly #watchMs: number;
  readonly #onLeft: (link: ShmLink) => void;
  readonly #links: ShmLink[] = [];
  /** Whether a look at the rings is certain to come. */
  #isLookDue = false;
  #watchUntilMs = 0;
  /** The index of the link that is looked at next. */
  #turnOf = 0;
  #isStopped = false;

  /**
   * @param bell the word on which this rank sleeps
   * @param watchMs the milliseconds for which it looks again in every turn before it sleeps
   * @param onLeft called when the peer of a link has said goodbye
   */
  constructor(bell: Int32Array, watchMs: number, onLeft: (link: ShmLink) => void) {
    this.#doorbell = new Doorbell(bell, () => this.wake());
    this.#watchMs = watchMs;
    this.#onLeft = onLeft;
  }

  add(link: ShmLink): void {
    this.#links.push(link);
  }

  /** Called when another rank has rung, or may have. */
  wake(): void {
    if (!this.#isLookDue && !this.#isStopped) {
      this.look();
    }
  }

  /** Makes the rings be looked at soon, because a frame is likely to come or to find room. */
  lookSoon(): void {
    this.#watchUntilMs = performance.now() + this.#watchMs;
    if (!this.#isLookDue && !this.#isStopped) {
      this.#doorbell.rise();
      this.#lookNextTurn();
    }
  }

  /** Does the same where answers are watched for. */
  expectAnswer(): void {
    if (this.#watchMs > 0) {
      this.lookSoon();
    }
  }

  /**
   * Reads and writes while there is something to move; then it watches for a while; then it sleeps.
   */
  look(): void {
    const endMs = performance.now() + LOOK_MS;
    while (!this.#isStopped) {
      this.#doorbell.rise();
      if (this.#moveSome(endMs)) {
        const nowMs = performance.now();
        this.#watchUntilMs = nowMs + this.#watchMs;
        if (nowMs > endMs) {
          this.#lookNextTurn();
          return;
        }
      } else if (performance.now() < this.#watchUntilMs) {
        this.#lookNextTurn();
        return;
      } else {
        this.#doorbell.closeEyes();
        if (!this.#links.some((link) => link.hasWork)) {
          this.#doorbell.sleep();
          return;
        }
      }
    }
  }

  stop(): void {
    this.#isStopped = true;
    this.#doorbell.dispose();
  }

  /** Looks at the rings in the next turn of the event loop, whether woken or not. */
  #lookNextTurn(): void {
    this.#isLookDue = true;
    const look = () => {
      this.#isLookDue = false;
      this.look();
    };
    if (typeof setImmediate === 'function') {
      setImmediate(look);
    } else {
      void yieldToEventLoop().then(look);
    }
  }

  /**
   * Moves some frames of each link, in both directions, until `endMs`. False where there were none.
   */
  #moveSome(endMs: number): boolean {
    let hasMoved = false;
    for (let i = 0; i < this.#links.length && !this.#isStopped; i++) {
      const link = this.#links[this.#turnOf]!;
      this.#turnOf = (this.#turnOf + 1) % this.#links.length;
      if (link.isOver) {
        continue;
      }
      const hasRead = link.receive();
      const hasWritten = link.sends.hasRoom && link.sends.pump();
      if (link.hasPeerLeft) {
        this.#onLeft(link);
      }
      if (hasRead || hasWritten) {
        hasMoved = true;
        if (performance.now() > endMs) {
          break; // the next one comes first the next time
        }
      }
    }
    return hasMoved;
  }
}
