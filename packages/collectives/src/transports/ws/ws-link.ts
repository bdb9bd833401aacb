// One WebSocket between two ranks: a queue of messages out, in chunks and with backpressure, and
// the state of the message that is coming in. Control text overtakes queued payload.

import type { WebSocket } from 'ws';
import type { ControlMessage, MessageHeader, MessageSink } from '../../transport.js';
import { CHUNK_BYTES, decodeFrame, encodeFrame, INLINE_MAX_BYTES } from './frame.js';

/** Bytes handed to a socket and not yet to the kernel: enough that it never runs dry. */
const WINDOW_BYTES = 4 * CHUNK_BYTES;

/** How long a polite ending may take before the socket is destroyed. */
const CLOSE_MS = 1000;

/** Close code of a rank that leaves in peace; any other end means it is lost. */
const LEFT_CODE = 4000;

const SEND_BINARY = { binary: true, compress: false, fin: true };
const SEND_TEXT = { binary: false, compress: false, fin: true };

/** What only this transport's ranks say to each other, beside ControlMessage. */
export type LinkMessage =
  | ControlMessage
  | { readonly type: 'alive' }
  | { readonly type: 'table'; readonly addresses: readonly PeerAddress[] };

export interface PeerAddress {
  readonly host: string;
  readonly port: number;
}

export interface LinkEvents {
  onMessage(from: number, header: MessageHeader): MessageSink;
  onControl(from: number, message: LinkMessage): void;
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

export class WsLink {
  readonly peer: number;
  readonly #socket: WebSocket;
  readonly #events: LinkEvents;
  readonly #queue: SendJob[] = [];
  readonly #unsettled = new Set<SendJob>();
  #inFlightBytes = 0;
  #sink: MessageSink | undefined;
  #remaining = 0;
  #hasEnded = false;
  #silentTicks = 0;
  #onDrained: (() => void) | undefined;

  constructor(socket: WebSocket, peer: number, events: LinkEvents) {
    this.peer = peer;
    this.#socket = socket;
    this.#events = events;
    socket.binaryType = 'nodebuffer';
    socket.on('message', (data, isBinary) => this.#onData(data as Buffer, isBinary));
    socket.on('error', (error) => this.#end(error.message));
    socket.on('close', (code, reason) => {
      if (code === LEFT_CODE) {
        this.#leave();
      } else {
        this.#end(reason.length > 0 ? reason.toString() : `its connection closed, code ${code}`);
      }
    });
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
      this.#socket.send(JSON.stringify(message), SEND_TEXT, () => {});
    }
  }

  /** One heartbeat interval has passed; says how many went by without a word from the peer. */
  tick(): number {
    this.sendControl({ type: 'alive' });
    return ++this.#silentTicks;
  }

  /** See Transport.close. */
  async close(how: 'drain' | 'drop', reason = ''): Promise<void> {
    const socket = this.#socket;
    const closed = new Promise<void>((resolve) => {
      if (socket.readyState === socket.CLOSED) {
        resolve();
      }
      socket.once('close', () => resolve());
    });
    const timer = setTimeout(() => socket.terminate(), CLOSE_MS);
    if (how === 'drain' && this.#unsettled.size > 0 && !this.#hasEnded) {
      await new Promise<void>((resolve) => {
        this.#onDrained = resolve;
      });
    }
    this.#hasEnded = true;
    this.#drop(new Error(`the link to rank ${this.peer} was closed`));
    socket.close(how === 'drain' ? LEFT_CODE : 4001, reason);
    await closed;
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
      this.#socket.send(chunk, SEND_BINARY, (error) => {
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

  #onData(data: Buffer, isBinary: boolean): void {
    this.#silentTicks = 0;
    if (this.#hasEnded) {
      return;
    }
    try {
      if (!isBinary) {
        this.#events.onControl(this.peer, JSON.parse(data.toString()) as LinkMessage);
      } else if (this.#remaining > 0) {
        this.#take(data);
      } else {
        const { header, inline } = decodeFrame(data);
        this.#sink = this.#events.onMessage(this.peer, header);
        this.#remaining = header.byteLength;
        if (inline.length > 0) {
          this.#take(inline);
        }
      }
    } catch (error) {
      this.#end(`it sent what can't be read: ${(error as Error).message}`);
    }
  }

  #take(chunk: Buffer): void {
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
