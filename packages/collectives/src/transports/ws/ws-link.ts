// One socket between two ranks: a queue of messages out, in chunks and with backpressure, and
// the state of the message that is coming in. Control text overtakes queued payload.

import type { ControlMessage, MessageHeader, MessageSink } from '../../transport.js';
import { CHUNK_BYTES, decodeFrame, encodeFrame, INLINE_MAX_BYTES } from './frame.js';
import type { WireHandler, WireSocket } from './wire-socket.js';

/** Bytes handed to a socket and not yet to the kernel: enough that it never runs dry. */
const WINDOW_BYTES = 4 * CHUNK_BYTES;

/** How long a polite ending may take before the socket is destroyed. */
const CLOSE_MS = 1000;

/** Close code of a rank that leaves in peace; any other end means it is lost. */
const LEFT_CODE = 4000;

/** And of one that has failed, or has been failed. */
const DROPPED_CODE = 4001;

/** What only this transport's ranks say to each other, beside ControlMessage. */
export type LinkMessage = ControlMessage | { readonly type: 'alive' };

export interface LinkEvents {
  onMessage(from: number, header: MessageHeader): MessageSink;
  /** Throws where it can't be read. */
  onText(from: number, text: string): void;
  onLost(peer: number, reason: string): void;
  onLeft(peer: number): void;
}

interface SendJob {
  readonly payload: Uint8Array;
  readonly frame: Uint8Array;
  isBegun: boolean;
  offset: number;
  resolve(): void;
  reject(error: Error): void;
}

export class WsLink implements WireHandler {
  readonly peer: number;
  /** Set by whatever arrives, for whoever watches over the peer's silence. */
  hasSpoken = true;
  readonly #socket: WireSocket;
  readonly #events: LinkEvents;
  readonly #queue: SendJob[] = [];
  readonly #unsettled = new Set<SendJob>();
  #inFlightBytes = 0;
  #sink: MessageSink | undefined;
  #remaining = 0;
  #hasEnded = false;
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

  /** Begins to hear what arrives. The link is known to its transport by then. */
  start(): void {
    this.#socket.setHandler(this);
  }

  /** Resolves when the kernel has all of it. */
  send(header: MessageHeader, payload: Uint8Array): Promise<void> {
    return new Promise((resolve, reject) => {
      if (this.#hasEnded) {
        reject(new Error(`the link to rank ${this.peer} is closed`));
        return;
      }
      const frame = encodeFrame(header, payload);
      const isInline = payload.byteLength <= INLINE_MAX_BYTES;
      const offset = isInline ? payload.byteLength : 0;
      const job = { payload, frame, isBegun: false, offset, resolve, reject };
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
  async close(how: 'drain' | 'drop', reason = ''): Promise<void> {
    const timer = setTimeout(() => this.#socket.terminate(), CLOSE_MS);
    if (how === 'drain' && this.#unsettled.size > 0 && !this.#hasEnded) {
      await new Promise<void>((resolve) => {
        this.#onDrained = resolve;
      });
    }
    this.#hasEnded = true;
    this.#drop(new Error(`the link to rank ${this.peer} was closed`));
    this.#socket.close(how === 'drain' ? LEFT_CODE : DROPPED_CODE, reason);
    await this.#closed;
    clearTimeout(timer);
  }

  terminate(): void {
    this.#hasEnded = true;
    this.#drop(new Error(`the link to rank ${this.peer} was terminated`));
    this.#socket.terminate();
  }

  #pump(): void {
    while (this.#queue.length > 0 && this.#inFlightBytes < WINDOW_BYTES && !this.#hasEnded) {
      const job = this.#queue[0]!;
      let chunk = job.frame;
      if (job.isBegun) {
        const end = Math.min(job.offset + CHUNK_BYTES, job.payload.byteLength);
        chunk = job.payload.subarray(job.offset, end);
        job.offset = end;
      }
      job.isBegun = true;
      const isLast = job.offset === job.payload.byteLength;
      if (isLast) {
        this.#queue.shift();
      }
      this.#inFlightBytes += chunk.byteLength;
      this.#socket.send(chunk, (error) => {
        this.#inFlightBytes -= chunk.byteLength;
        if (error) {
          this.#end(error.message);
        } else {
          if (isLast) {
            this.#settle(job);
          }
          this.#pump();
        }
      });
    }
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
    this.#read(() => this.#events.onText(this.peer, text));
  }

  onBinary(data: Uint8Array): void {
    this.hasSpoken = true;
    this.#read(() => {
      if (this.#remaining > 0) {
        this.#take(data);
        return;
      }
      const { header, inline } = decodeFrame(data);
      this.#sink = this.#events.onMessage(this.peer, header);
      this.#remaining = header.byteLength;
      if (inline.length > 0) {
        this.#take(inline);
      }
    });
  }

  onClose(code: number, reason: string): void {
    this.#onClosed();
    if (code === LEFT_CODE) {
      this.#leave();
    } else {
      this.#end(reason || `its connection closed, code ${code}`);
    }
  }

  #read(take: () => void): void {
    if (this.#hasEnded) {
      return;
    }
    try {
      take();
    } catch (error) {
      this.#end(`it sent what can't be read: ${(error as Error).message}`);
    }
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
      // What it did not read any more, it did not need.
      for (const job of [...this.#unsettled]) {
        this.#settle(job);
      }
      this.#queue.length = 0;
      this.#events.onLeft(this.peer);
    }
  }

  #end(reason: string): void {
    if (!this.#hasEnded) {
      this.#hasEnded = true;
      this.#events.onLost(this.peer, reason);
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
