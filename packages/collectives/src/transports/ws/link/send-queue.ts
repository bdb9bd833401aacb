// The messages that wait for their socket, which are sent in chunks, no faster than the system
// takes them.

import { yieldToEventLoop } from '@shardweave/dtypes';
import type { WireSocket } from '../../../sockets/wire-socket.js';
import type { MessageHeader } from '../../../transport.js';
import { CHUNK_BYTES, type FrameCodec, INLINE_MAX_BYTES } from './frame.js';

/** The bytes that a socket is given ahead of the kernel: enough that it never runs dry. */
const WINDOW_BYTES = 4 * CHUNK_BYTES;

/**
 * The bytes that a link hands over within one turn of the event loop. Otherwise a system that takes
 * everything at once would be fed without end: 38 MiB were seen in one turn, and a copy to the
 * system takes about 0.5 ms a MiB.
 */
const MAX_TURN_BYTES = 4 * 2 ** 20;

/** A message on its way that is too large to be copied. */
interface SendJob {
  readonly header: MessageHeader;
  readonly payload: Uint8Array;
  offset: number;
  isBegun: boolean;
  readonly onProgress: (() => void) | undefined;
  resolve(): void;
  reject(error: Error): void;
}

export class SendQueue {
  readonly #socket: WireSocket;
  readonly #codec: FrameCodec;
  readonly #onError: (error: Error) => void;
  readonly #queue: SendJob[] = [];
  readonly #unsettled = new Set<SendJob>();
  #inFlightBytes = 0;
  /** The bytes that were handed over since the event loop last had a turn on this link's behalf. */
  #turnBytes = 0;
  #isWaiting = false;
  #onDrained: (() => void) | undefined;

  /** `onError` is called, perhaps more than once, when the socket can't send. */
  constructor(socket: WireSocket, codec: FrameCodec, onError: (error: Error) => void) {
    this.#socket = socket;
    this.#codec = codec;
    this.#onError = onError;
  }

  /** Whether the system has all payloads. */
  get isDrained(): boolean {
    return this.#unsettled.size === 0;
  }

  /**
   * Resolves when the payload may be changed, because the kernel has all of it; undefined where it
   * was copied.
   */
  send(
    header: MessageHeader,
    payload: Uint8Array,
    onProgress?: () => void,
  ): Promise<void> | undefined {
    const isInline = payload.byteLength <= INLINE_MAX_BYTES;
    if (isInline && this.#queue.length === 0 && this.#socket.unsentBytes < WINDOW_BYTES) {
      this.#socket.send(this.#codec.encode(header, payload));
      return undefined;
    }
    return new Promise((resolve, reject) => {
      const job = { header, payload, offset: 0, isBegun: false, onProgress, resolve, reject };
      this.#queue.push(job);
      this.#unsettled.add(job);
      this.#pump();
    });
  }

  /** Resolves when it is drained or dropped. */
  drained(): Promise<void> {
    return new Promise((resolve) => {
      this.#onDrained = resolve;
    });
  }

  /** Forgets what is queued. Its sends reject with the error, or resolve where there is none. */
  drop(error?: Error): void {
    this.#queue.length = 0;
    for (const job of this.#unsettled) {
      if (error === undefined) {
        job.resolve();
      } else {
        job.reject(error);
      }
    }
    this.#unsettled.clear();
    this.#onDrained?.();
  }

  /** Keeps about WINDOW_BYTES of payload with the system. */
  #pump(): void {
    while (this.#queue.length > 0 && this.#inFlightBytes < WINDOW_BYTES) {
      if (this.#turnBytes >= MAX_TURN_BYTES) {
        void this.#pumpLater();
        return;
      }
      const job = this.#queue[0]!;
      const isInline = job.payload.byteLength <= INLINE_MAX_BYTES;
      if (isInline) {
        this.#sendChunk(job, this.#codec.encode(job.header, job.payload), job.payload.byteLength);
      } else if (job.isBegun) {
        this.#sendNext(job);
      } else {
        job.isBegun = true;
        // Header and first chunk go out in one system call.
        this.#socket.batch(() => {
          this.#socket.send(this.#codec.encode(job.header, job.payload));
          this.#sendNext(job);
        });
      }
    }
  }

  async #pumpLater(): Promise<void> {
    if (!this.#isWaiting) {
      this.#isWaiting = true;
      await yieldToEventLoop();
      this.#isWaiting = false;
      this.#turnBytes = 0;
      this.#pump();
    }
  }

  #sendNext(job: SendJob): void {
    const end = Math.min(job.offset + CHUNK_BYTES, job.payload.byteLength);
    this.#sendChunk(job, job.payload.subarray(job.offset, end), end);
  }

  /** Sends a chunk, after which the payload has been handed over up to `end`. */
  #sendChunk(job: SendJob, chunk: Uint8Array, end: number): void {
    job.offset = end;
    const isLast = end === job.payload.byteLength;
    if (isLast) {
      this.#queue.shift();
    }
    this.#inFlightBytes += chunk.byteLength;
    this.#turnBytes += chunk.byteLength;
    this.#socket.send(chunk, (error) => {
      this.#inFlightBytes -= chunk.byteLength;
      if (error) {
        this.#onError(error);
        return;
      }
      job.onProgress?.();
      if (isLast) {
        this.#settle(job);
      }
      this.#pump();
    });
  }

  #settle(job: SendJob): void {
    job.resolve();
    this.#unsettled.delete(job);
    if (this.#unsettled.size === 0) {
      this.#onDrained?.();
    }
  }
}
