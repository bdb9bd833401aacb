// One socket between two ranks: a queue of messages that are sent in chunks, no faster than they
// are taken, and the state of the message that is coming in. Control text overtakes queued payload.

import { yieldToEventLoop } from '@shardweave/dtypes';
import type { WireHandler, WireSocket } from '../../../sockets/wire-socket.js';
import type { ControlMessage, MessageHeader, MessageSink } from '../../../transport.js';
import { CHUNK_BYTES, FrameCodec, INLINE_MAX_BYTES } from './frame.js';

/** The bytes that a socket is given ahead of the kernel: enough that it never runs dry. */
const WINDOW_BYTES = 4 * CHUNK_BYTES;

/**
 * The bytes that a link hands over within one turn of the event loop. Otherwise a system that takes
 * everything at once would be fed without end: 38 MiB were seen in one turn, and a copy to the
 * system takes about 0.5 ms a MiB.
 */
const MAX_TURN_BYTES = 4 * 2 ** 20;

/** The milliseconds that a polite ending may take before the socket is destroyed. */
const CLOSE_MS = 1000;

/** The close code of a rank that leaves in peace; any other end means that it is lost. */
const LEFT_CODE = 4000;

/** The close code of a rank whose job has failed, by itself or by another one. */
export const DROPPED_CODE = 4001;

/** Stands for a close code where no close frame came. */
const CUT_CODE = 1006;

/**
 * A text message of a link: a ControlMessage, or what only ranks of this transport tell each other.
 */
export type LinkMessage =
  | ControlMessage
  | { readonly type: 'alive' }
  /**
   * The port on which the sender's heartbeat worker listens for peers that can't listen; 0 where it
   * doesn't.
   */
  | { readonly type: 'heartbeat port'; readonly port: number };

export interface LinkEvents {
  onMessage(from: number, header: MessageHeader): MessageSink;
  /** Called with a text. Throws where it can't be read. */
  onText(from: number, text: string): void;
  onLost(peer: number, reason: string, end?: LinkEnd): void;
  onLeft(peer: number): void;
}

/** What the end of a link tells beside its reason. */
export interface LinkEnd {
  /** Whether the peer has given up, so that the cause is elsewhere and may be on its way. */
  readonly hasFailed: boolean;
  /**
   * Whether no close frame came, so that the other end of this connection is gone, which may be a
   * relay's.
   */
  readonly isCut: boolean;
}

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

export class WsLink implements WireHandler {
  readonly peer: number;
  /** Set by whatever arrives, for the watch over the peer's silence. */
  hasSpoken = true;
  readonly #socket: WireSocket;
  readonly #events: LinkEvents;
  readonly #codec = new FrameCodec();
  readonly #queue: SendJob[] = [];
  readonly #unsettled = new Set<SendJob>();
  #inFlightBytes = 0;
  /** The bytes that were handed over since the event loop last had a turn on this link's behalf. */
  #turnBytes = 0;
  #isWaiting = false;
  #sink: MessageSink | undefined;
  #remaining = 0;
  #hasEnded = false;
  /**
   * Whether nothing counts that the peer sends, because it can't be read. The peer may still be
   * told.
   */
  #isDeaf = false;
  #onDrained: (() => void) | undefined;
  readonly #closed: Promise<void>;
  #onClosed: () => void = () => {};

  constructor(socket: WireSocket, peer: number, events: LinkEvents) {
    this.peer = peer;
    this.#socket = socket;
    this.#events = events;
    this.#closed = new Promise((resolve) => {
      this.#onClosed = resolve;
    });
  }

  /** Begins to receive. The link is known to its transport by then. */
  start(): void {
    this.#socket.setHandler(this);
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
    if (this.#hasEnded) {
      return Promise.reject(new Error(`the link to rank ${this.peer} is closed`));
    }
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

  sendControl(message: LinkMessage): void {
    if (!this.#hasEnded) {
      this.#socket.sendText(JSON.stringify(message));
    }
  }

  /** See Transport.close. */
  async close(how: 'drain' | 'drop'): Promise<void> {
    this.#socket.stopFilling?.(); // the buffers belong to their receivers again
    const timer = setTimeout(() => this.#socket.terminate(), CLOSE_MS);
    if (how === 'drain' && this.#unsettled.size > 0 && !this.#hasEnded) {
      await new Promise<void>((resolve) => {
        this.#onDrained = resolve;
      });
    }
    this.#hasEnded = true;
    this.#drop(new Error(`the link to rank ${this.peer} was closed`));
    this.#socket.close(how === 'drain' ? LEFT_CODE : DROPPED_CODE, '');
    await this.#closed;
    clearTimeout(timer);
  }

  terminate(): void {
    this.#hasEnded = true;
    this.#drop(new Error(`the link to rank ${this.peer} was terminated`));
    this.#socket.terminate();
  }

  /** Keeps about WINDOW_BYTES of payload with the system. */
  #pump(): void {
    while (this.#queue.length > 0 && this.#inFlightBytes < WINDOW_BYTES && !this.#hasEnded) {
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
        this.#end(error.message, { hasFailed: false, isCut: true });
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

  onText(text: string): void {
    this.hasSpoken = true;
    if (!this.#hasEnded && !this.#isDeaf) {
      try {
        this.#events.onText(this.peer, text);
      } catch (error) {
        this.#onUnreadable(error);
      }
    }
  }

  room(): Uint8Array | undefined {
    const isHeard = !this.#hasEnded && !this.#isDeaf;
    return this.#remaining > 0 && isHeard ? this.#sink!.room : undefined;
  }

  filled(byteLength: number): void {
    this.hasSpoken = true;
    this.#remaining -= byteLength;
    this.#sink!.filled!(byteLength);
  }

  onBinary(data: Uint8Array): void {
    this.hasSpoken = true;
    if (this.#hasEnded || this.#isDeaf) {
      return;
    }
    try {
      if (this.#remaining > 0) {
        this.#take(data);
        return;
      }
      const { header, inline } = this.#codec.decode(data);
      this.#sink = this.#events.onMessage(this.peer, header);
      this.#remaining = header.byteLength;
      if (inline.length > 0) {
        this.#take(inline);
      }
    } catch (error) {
      this.#onUnreadable(error);
    }
  }

  onClose(code: number, reason: string): void {
    this.#onClosed();
    if (code === LEFT_CODE) {
      this.#leave();
    } else {
      const hasFailed = code === DROPPED_CODE;
      const told = hasFailed ? 'it has failed, and could not say why' : `code ${code}`;
      this.#end(reason || `its connection closed, ${told}`, {
        hasFailed,
        isCut: code === CUT_CODE,
      });
    }
  }

  #onUnreadable(error: unknown): void {
    this.#isDeaf = true;
    const reason = `it sent what can't be read: ${(error as Error).message}`;
    this.#events.onLost(this.peer, reason, { hasFailed: false, isCut: false });
  }

  #take(chunk: Uint8Array): void {
    if (chunk.length > this.#remaining) {
      throw new RangeError(`${chunk.length} bytes where ${this.#remaining} were missing`);
    }
    this.#remaining -= chunk.length;
    this.#sink!.write(chunk);
  }

  #leave(): void {
    if (!this.#hasEnded) {
      this.#hasEnded = true;
      // A peer that leaves in peace did not need what it has not read.
      for (const job of [...this.#unsettled]) {
        this.#settle(job);
      }
      this.#queue.length = 0;
      this.#events.onLeft(this.peer);
    }
  }

  #end(reason: string, end: LinkEnd): void {
    if (!this.#hasEnded) {
      this.#hasEnded = true;
      if (!this.#isDeaf) {
        this.#events.onLost(this.peer, reason, end);
      }
      this.#drop(new Error(`the link to rank ${this.peer} broke: ${reason}`));
      this.#socket.terminate();
    }
  }

  #drop(error: Error): void {
    this.#queue.length = 0;
    for (const job of this.#unsettled) {
      job.reject(error);
    }
    this.#unsettled.clear();
    this.#onDrained?.();
  }
}
