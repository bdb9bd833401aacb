// One direction of the link between two ranks: payload in chunks, in order, within a window, and
// control messages beside it.

import type { MessageHeader, MessageSink } from '../../transport.js';
import type { SeededRandom } from './seeded-random.js';
import { SimulatedWire, type SimulatedWireOptions } from './simulated-wire.js';

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

export interface SimulatedLinkOptions extends SimulatedWireOptions {
  readonly from: number;
  readonly to: number;
  readonly random: SeededRandom;
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
  readonly wire: SimulatedWire;
  readonly #options: SimulatedLinkOptions;
  readonly #queue: Job[] = [];
  readonly #unsettled = new Set<Job>();
  #isShut = false;
  #inFlightBytes = 0;
  #onDrained: (() => void) | undefined;

  constructor(options: SimulatedLinkOptions) {
    this.#options = options;
    this.wire = new SimulatedWire(options);
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
      this.wire.control(action);
    }
  }

  /** Lets nothing more in. Unsettled sends resolve or reject, because nothing depends on which. */
  shut(): void {
    this.#isShut = true;
    this.#queue.length = 0;
    for (const job of [...this.#unsettled]) {
      this.#fail(job);
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
        this.wire.payload(0, () => this.#begin(job));
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
    if (!this.#unsettled.has(job) || this.wire.isOver) {
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
    const isKept = this.#options.isSloppy;
    this.wire.payload(
      size,
      () => {
        job.incoming.sink?.write(chunk);
        chunk.fill(0xee); // lent for the duration of write only
        this.#inFlightBytes -= size;
        this.#pump();
      },
      { isKept },
    );
    job.onProgress?.();
  }

  #chunkBytes(job: Job): number {
    const { conditions, random } = this.#options;
    const least = Math.ceil(job.payload.byteLength / MAX_CHUNKS);
    const size = Math.max(least, 1 + random.below(conditions.maxChunkBytes));
    return Math.min(size, job.payload.byteLength - job.offset);
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
