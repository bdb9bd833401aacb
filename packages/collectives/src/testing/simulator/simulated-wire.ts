// The way between two ranks: what goes in comes out after a delay that conditions give. Payload
// keeps its order, and so do control messages, which overtake payload. A wire that is held lets
// nothing out, and later all of it.

import type { LinkConditions } from './link-conditions.js';
import type { SimulatedProcess } from './simulated-process.js';
import type { VirtualTime } from './virtual-time.js';

export interface SimulatedWireOptions {
  readonly conditions: LinkConditions;
  readonly time: VirtualTime;
  /** The process of the receiver. */
  readonly process: SimulatedProcess;
}

export class SimulatedWire {
  readonly #options: SimulatedWireOptions;
  readonly #held: (() => void)[] = [];
  #numHolds = 0;
  #isOver = false;
  #isSevered = false;
  #freeMs = 0;
  #lastPayloadMs = 0;
  #lastControlMs = 0;
  #maxDelayMs = 0;

  constructor(options: SimulatedWireOptions) {
    this.#options = options;
  }

  /** Whether the receiver no longer hears anything of it. */
  get isOver(): boolean {
    return this.#isOver;
  }

  /** The longest time that anything has taken on the way so far. */
  get maxDelayMs(): number {
    return this.#maxDelayMs;
  }

  /**
   * Brings `byteLength` bytes of payload, after all payload before them.
   * @param isKept whether they arrive at a receiver that hears nothing more, too
   */
  payload(byteLength: number, action: () => void, { isKept = false } = {}): void {
    const { conditions, time } = this.#options;
    this.#freeMs = Math.max(this.#freeMs, time.nowMs) + byteLength / conditions.bytesPerMs;
    const queuedMs = this.#freeMs - time.nowMs;
    this.#lastPayloadMs = Math.max(this.#lastPayloadMs, this.#arrivalMs() + queuedMs);
    this.#arriveAt(this.#lastPayloadMs, action, { isKept });
  }

  /** Brings a control message, after all control messages before it. */
  control(action: () => void): void {
    this.#lastControlMs = Math.max(this.#lastControlMs, this.#arrivalMs());
    this.#arriveAt(this.#lastControlMs, action);
  }

  /** Brings the last thing: after everything before it, or while payload is lost on the way. */
  end(isAfterPayload: boolean, action: () => void): void {
    const payloadMs = isAfterPayload ? this.#lastPayloadMs : 0;
    const timeMs = Math.max(this.#arrivalMs(), this.#lastControlMs, payloadMs);
    this.#arriveAt(timeMs, action, { isEnding: true });
  }

  /** Loses what is on its way or goes in from now on, without any notice; endings arrive. */
  sever(): void {
    this.#isSevered = true;
  }

  /** Lets nothing more out. */
  deafen(): void {
    this.#isOver = true;
    this.#held.length = 0;
  }

  /** Delivers nothing until `release` was called as often. */
  hold(): void {
    this.#numHolds++;
  }

  release(): void {
    this.#numHolds--;
    if (this.#numHolds === 0) {
      for (const action of this.#held.splice(0)) {
        this.#options.process.do(action);
      }
    }
  }

  #arrivalMs(): number {
    const delayMs = this.#options.conditions.delayMs();
    this.#maxDelayMs = Math.max(this.#maxDelayMs, delayMs);
    return this.#options.time.nowMs + delayMs;
  }

  #arriveAt(timeMs: number, action: () => void, { isEnding = false, isKept = false } = {}): void {
    const { time, process } = this.#options;
    const arrive = () => {
      if ((!this.#isOver || isKept) && (!this.#isSevered || isEnding)) {
        action();
      }
    };
    time.at(timeMs, () => {
      if (this.#numHolds > 0) {
        this.#held.push(arrive);
      } else {
        process.do(arrive);
      }
    });
  }
}
