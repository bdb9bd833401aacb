// One direction of the link between two ranks: payload in chunks, in order, within a window;
// control messages on a lane of their own. A link that is held delivers nothing, and later delivers
// all of it.

import type { MessageHeader, MessageSink } from '../../transport.js';
import type { LinkConditions } from './link-conditions.js';
import type { SeededRandom } from './seeded-random.js';
import type { SimulatedProcess } from './simulated-process.js';
import type { VirtualTime } from './virtual-time.js';

/** The most chunks of a message, where chunks are tiny and payloads large. */
const MAX_CHUNKS = 12;

interface Job {
  readonly header: MessageHeader;
  readonly payload: Uint8Array;
  readonly onProgress: (() => void) | undefined;
  readonly incoming: { sink: MessageSink | undefined };
  isBegun: boolean;
  offset: number;
  resolve(): void;
  reject(error: Error): void;
}

export interface SimulatedLinkOptions {
  readonly from: number;
  readonly to: number;
  readonly conditions: LinkConditions;
  readonly time: VirtualTime;
  readonly random: SeededRandom;
  /** The process of the receiver. */
  readonly process: SimulatedProcess;
  /** Whether payload stays with the sender until the receiver has named its buffer. */
  readonly isLending: boolean;
  /** Whether lent payload is copied even where its receiver would read it in its place. */
  readonly isCopying: boolean;
  /** Whether sends that come to nothing reject rather than resolve. */
  readonly isRejecting: boolean;
  /**
   * Whether chunks of messages that have begun are still written after the receiver has closed. The
   * seam forbids it, but sinks must not depend on that.
   */
  readonly isSloppy: boolean;
  onMessage(header: MessageHeader): MessageSink;
}

export class SimulatedLink {
  readonly #options: SimulatedLinkOptions;
  readonly #queue: Job[] = [];
  readonly #unsettled = new Set<Job>();
  readonly #held: (() => void)[] = [];
  #numHolds = 0;
  #isOver = false;
  #isShut = false;
  #isSevered = false;
  #inFlightBytes = 0;
  #wireFreeMs = 0;
  #lastPayloadMs = 0;
  #lastControlMs = 0;
  #maxDelayMs = 0;
  #onDrained: (() => void) | undefined;

  constructor(options: SimulatedLinkOptions) {
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

  send(header: MessageHeader, payload: Uint8Array, onProgress?: () => void): Promise<void> {
    return new Promise((resolve, reject) => {
      const begin = { isBegun: false, offset: 0, incoming: { sink: undefined } };
      const job = { ...begin, header, payload, onProgress, resolve, reject };
      this.#unsettled.add(job);
      if (this.#isShut) {
        this.#fail(job);
      } else {
        this.#queue.push(job);
        this.#pump();
      }
    });
  }

  /** Sends a control message ahead of queued payload, in order with earlier control messages. */
  control(action: () => void): void {
    if (!this.#isShut) {
      this.#lastControlMs = Math.max(this.#lastControlMs, this.#arrivalMs());
      this.#arriveAt(this.#lastControlMs, action);
    }
  }

  /** Sends the last thing: after everything that was sent, or while payload is lost on the way. */
  end(isAfterPayload: boolean, action: () => void): void {
    const payloadMs = isAfterPayload ? this.#lastPayloadMs : 0;
    const timeMs = Math.max(this.#arrivalMs(), this.#lastControlMs, payloadMs);
    this.#arriveAt(timeMs, action, { isEnding: true });
  }

  /** Lets nothing more in. Unsettled sends resolve or reject, because nothing depends on which. */
  shut(): void {
    this.#isShut = true;
    this.#queue.length = 0;
    for (const job of [...this.#unsettled]) {
      this.#fail(job);
    }
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

  /** Resolves when no send is unsettled. */
  async drained(): Promise<void> {
    if (this.#unsettled.size > 0) {
      await new Promise<void>((resolve) => {
        this.#onDrained = resolve;
      });
    }
  }

  #pump(): void {
    const { windowBytes } = this.#options.conditions;
    while (this.#queue.length > 0 && this.#inFlightBytes < windowBytes) {
      const job = this.#nextJob();
      if (!job.isBegun) {
        job.isBegun = true;
        this.#arriveAt(this.#payloadMs(0), () => this.#begin(job));
        if (this.#options.isLending && job.payload.byteLength > 0) {
          this.#remove(job);
          continue;
        }
      } else {
        this.#sendChunk(job);
      }
      if (job.offset === job.payload.byteLength) {
        this.#remove(job);
        this.#settle(job);
      }
    }
  }

  /** The first job, or one of the next, where all before it have begun. */
  #nextJob(): Job {
    const { conditions, random } = this.#options;
    let at = 0;
    while (
      conditions.isInterleaving &&
      at + 1 < this.#queue.length &&
      this.#queue[at]!.isBegun &&
      random.chance(0.5)
    ) {
      at++;
    }
    return this.#queue[at]!;
  }

  #begin(job: Job): void {
    const { sink } = job.incoming;
    if (sink !== undefined) {
      return;
    }
    job.incoming.sink = this.#options.onMessage(job.header);
    const { posted } = job.incoming.sink;
    if (!this.#options.isLending || job.payload.byteLength === 0) {
      return;
    }
    if (posted === undefined) {
      this.#lend(job);
    } else {
      void posted.then(() => this.#options.process.do(() => this.#lend(job)));
    }
  }

  /** Copies straight out of the sender's memory, in steps. */
  #lend(job: Job): void {
    if (!this.#unsettled.has(job) || this.#isOver) {
      return; // the sender has its memory back
    }
    const { lend } = job.incoming.sink!;
    if (job.offset === 0 && lend !== undefined && !this.#options.isCopying) {
      lend(job.payload, () => {
        const isWhole = this.#unsettled.has(job);
        this.#settle(job);
        return isWhole;
      });
      return;
    }
    const size = this.#chunkBytes(job);
    job.incoming.sink!.write(job.payload.subarray(job.offset, job.offset + size));
    job.offset += size;
    job.onProgress?.();
    if (job.offset < job.payload.byteLength) {
      this.#options.time.after(this.#options.random.pick([0, 0.01, 3]), () =>
        this.#options.process.do(() => this.#lend(job)),
      );
    } else {
      this.#settle(job);
    }
  }

  #sendChunk(job: Job): void {
    const size = this.#chunkBytes(job);
    const chunk = job.payload.slice(job.offset, job.offset + size);
    job.offset += size;
    this.#inFlightBytes += size;
    const isChunk = this.#options.isSloppy;
    this.#arriveAt(
      this.#payloadMs(size),
      () => {
        job.incoming.sink?.write(chunk);
        chunk.fill(0xee); // lent for the duration of write only
        this.#inFlightBytes -= size;
        this.#pump();
      },
      { isChunk },
    );
    job.onProgress?.();
  }

  #chunkBytes(job: Job): number {
    const { conditions, random } = this.#options;
    const least = Math.ceil(job.payload.byteLength / MAX_CHUNKS);
    const size = Math.max(least, 1 + random.below(conditions.maxChunkBytes));
    return Math.min(size, job.payload.byteLength - job.offset);
  }

  /** The time at which a chunk of `size` bytes arrives, which is after all chunks before it. */
  #payloadMs(size: number): number {
    const { conditions, time } = this.#options;
    this.#wireFreeMs = Math.max(this.#wireFreeMs, time.nowMs) + size / conditions.bytesPerMs;
    const queuedMs = this.#wireFreeMs - time.nowMs;
    this.#lastPayloadMs = Math.max(this.#lastPayloadMs, this.#arrivalMs() + queuedMs);
    return this.#lastPayloadMs;
  }

  #arrivalMs(): number {
    const delayMs = this.#options.conditions.delayMs();
    this.#maxDelayMs = Math.max(this.#maxDelayMs, delayMs);
    return this.#options.time.nowMs + delayMs;
  }

  #arriveAt(timeMs: number, action: () => void, { isEnding = false, isChunk = false } = {}): void {
    const { time, process } = this.#options;
    const arrive = () => {
      if ((!this.#isOver || isChunk) && (!this.#isSevered || isEnding)) {
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

  #remove(job: Job): void {
    this.#queue.splice(this.#queue.indexOf(job), 1);
  }

  #fail(job: Job): void {
    if (this.#options.isRejecting) {
      job.reject(new Error(`the link to rank ${this.#options.to} is closed`));
    }
    this.#settle(job);
  }

  #settle(job: Job): void {
    if (!this.#unsettled.has(job)) {
      return; // released twice
    }
    job.resolve();
    this.#unsettled.delete(job);
    if (this.#unsettled.size === 0) {
      this.#onDrained?.();
    }
  }
}
