// A rank's process: everything that happens to a rank (arrivals, timers, its program's waits) goes
// through it, so that it can be held up (busy, or stopped by a signal) or die at any moment.

import type { Clock } from '../../clock.js';
import type { SeededRandom } from './seeded-random.js';
import type { VirtualTime } from './virtual-time.js';

/** The longest time that a turn of the event loop takes, with other work in it. */
const MAX_TURN_MS = 20;

export class SimulatedProcess implements Clock {
  readonly #time: VirtualTime;
  readonly #random: SeededRandom;
  readonly #waiting: (() => void)[] = [];
  #numPauses = 0;
  #isBlocked = false;
  #isDead = false;
  #numTimers = 0;

  constructor(time: VirtualTime, random: SeededRandom) {
    this.#time = time;
    this.#random = random;
  }

  get isDead(): boolean {
    return this.#isDead;
  }

  /** Whether the process is stopped or busy at this moment. */
  get isBlocked(): boolean {
    return this.#isBlocked;
  }

  /** The number of timers that were set and have neither fired nor been cancelled. */
  get numTimers(): number {
    return this.#numTimers;
  }

  /** Does `action` now, or when the process goes on, or never. */
  do(action: () => void): void {
    if (this.#isDead) {
      return;
    }
    if (this.#isBlocked) {
      this.#waiting.push(action);
    } else {
      action();
    }
  }

  /** Holds up everything until `resume` was called as often. */
  pause(): void {
    this.#numPauses++;
    this.#isBlocked = true;
  }

  resume(): void {
    this.#numPauses--;
    this.#catchUp();
  }

  die(): void {
    this.#isDead = true;
    this.#waiting.length = 0;
  }

  now(): number {
    return this.#time.nowMs;
  }

  setTimer(ms: number, callback: () => void): () => void {
    this.#numTimers++;
    let isOver = false;
    const end = () => {
      if (!isOver) {
        isOver = true;
        this.#numTimers--;
      }
    };
    const cancel = this.#time.after(ms, () =>
      this.do(() => {
        if (!isOver) {
          end();
          callback();
        }
      }),
    );
    return () => {
      end();
      cancel();
    };
  }

  sleep(ms: number): Promise<void> {
    return new Promise((resolve) => {
      this.setTimer(ms, resolve);
    });
  }

  turn(): Promise<void> {
    return this.sleep(this.#random.chance(0.7) ? 0 : this.#random.between(0, MAX_TURN_MS));
  }

  /** Does what has been held up, in its order, each in a moment of its own. */
  #catchUp(): void {
    if (this.#isDead || this.#numPauses > 0) {
      return;
    }
    const next = this.#waiting.shift();
    if (next === undefined) {
      this.#isBlocked = false;
      return;
    }
    next();
    this.#time.after(0, () => this.#catchUp());
  }
}
