// WireSocket over a connection that the `ws` library has upgraded. Between processes of this
// package messages are framed and read here, straight on the connection (see websocket-reader.ts).
// What a page sends (masked, perhaps in fragments) the library reads, with `bufferutil` where it is
// installed.

import type { Socket } from 'node:net';
import type { WebSocket } from 'ws';
import { closeReasonBytes } from './close-reason.js';
import { DirectRead } from './direct-read.js';
import { FrameWriter } from './frame-writer.js';
import { HandlerSlot } from './handler-slot.js';
import { MAX_MESSAGE_BYTES, STRANGER_BYTES } from './limits.js';
import { PingProbe } from './ping-probe.js';
import { sessionOf } from './tls-psk.js';
import { WebSocketReader } from './websocket-reader.js';
import type { WireHandler, WireSocket } from './wire-socket.js';

/** The milliseconds that the peer may take to answer a close before the connection is dropped. */
const CLOSE_MS = 1000;

/** A peer that pings, and leaves this many bytes of answers unread, gets no further answers. */
const MAX_UNREAD_PONG_BYTES = 1024;

const NO_STATUS = 1005;

export interface NodeSocketOptions {
  /** The connection of an accepted socket. That of an opened socket is known when it is open. */
  readonly connection?: Socket;
  /** Whether the peer is a page, so that the library reads what it sends. */
  readonly isPage?: boolean;
}

export class NodeSocket implements WireSocket {
  readonly #socket: WebSocket;
  readonly #slot = new HandlerSlot();
  readonly #reader: WebSocketReader;
  readonly #isClient: boolean;
  readonly #isPage: boolean;
  #connection: Socket | undefined;
  #writer: FrameWriter | undefined;
  #direct: DirectRead | undefined;
  #hasClosed = false;
  readonly #ping: PingProbe;
  /**
   * The bytes that an accepted peer may still send, counted as they come; Infinity once it is
   * trusted.
   */
  #strangerBytes: number;

  /**
   * Takes an accepted socket, or one that is about to open; nothing else may listen to it. An
   * accepted peer is a stranger until `trust`: it may send STRANGER_BYTES in all, and gets no pong.
   */
  constructor(socket: WebSocket, options: NodeSocketOptions = {}) {
    this.#socket = socket;
    this.#ping = new PingProbe(socket);
    this.#isClient = options.connection === undefined;
    if (options.connection !== undefined) {
      this.#setConnection(options.connection);
    }
    this.#isPage = options.isPage === true;
    this.#strangerBytes = this.#isClient ? Infinity : STRANGER_BYTES;
    this.#reader = new WebSocketReader(
      {
        onBinary: (bytes) => this.#slot.onBinary(bytes),
        room: () => this.#slot.room(),
        filled: (byteLength) => this.#slot.filled(byteLength),
        onText: (text) => this.#slot.onText(text),
        onPing: (bytes) => this.#pong(bytes),
        onPong: () => this.#ping.onPong(),
        onClose: (code, reason) => this.#onCloseFrame(code, reason),
      },
      this.#isClient ? MAX_MESSAGE_BYTES : STRANGER_BYTES,
    );
    socket.on('error', (error) => {
      this.#slot.onClose(1006, error.message);
      this.terminate();
    });
    socket.on('close', (code, reason) => this.#slot.onClose(code, reason.toString()));
    if (this.#isPage) {
      this.#readByLibrary();
    } else if (this.#isClient) {
      socket.once('upgrade', (response) => {
        this.#setConnection(response.socket);
      });
      socket.once('open', () => this.#readHere());
    } else {
      this.#readHere();
    }
  }

  /** The address of the interface that it goes out by, while it is open. */
  get localHost(): string | undefined {
    return this.#connection?.localAddress?.replace(/^::ffff:/, '');
  }

  get session(): Uint8Array | undefined {
    return this.#isPage ? undefined : sessionOf(this.#connection!);
  }

  get unsentBytes(): number {
    return this.#connection!.writableLength;
  }

  setHandler(handler: WireHandler | undefined): void {
    this.#slot.setHandler(handler);
  }

  trust(maxMessageBytes: number): void {
    this.#reader.maxMessageBytes = maxMessageBytes;
    this.#strangerBytes = Infinity;
  }

  send(bytes: Uint8Array, written?: (error?: Error | null) => void): void {
    this.#writer!.binary(bytes, written);
  }

  sendText(text: string): void {
    this.#writer!.text(text);
  }

  batch(body: () => void): void {
    this.#connection!.cork();
    body();
    this.#connection!.uncork();
  }

  close(code: number, reason: string): void {
    this.stopFilling();
    const socket = this.#socket;
    if (socket.readyState === socket.CLOSED) {
      return;
    }
    const timer = setTimeout(() => socket.terminate(), CLOSE_MS);
    socket.once('close', () => clearTimeout(timer));
    this.#hasClosed = true;
    socket.close(code, Buffer.from(closeReasonBytes(reason)));
  }

  terminate(): void {
    this.stopFilling();
    this.#socket.terminate();
  }

  stopFilling(): void {
    this.#direct?.stop();
  }

  answers(limitMs: number): Promise<boolean> {
    return this.#ping.answers(limitMs);
  }

  setReads(reads: boolean): void {
    const readable = this.#isPage ? this.#socket : this.#connection;
    if (reads) {
      readable?.resume();
    } else {
      readable?.pause();
    }
  }

  #setConnection(connection: Socket): void {
    this.#connection = connection;
    this.#writer = new FrameWriter(connection, this.#isClient);
  }

  /** Reads in place of the library's receiver, from the first byte on. */
  #readHere(): void {
    const connection = this.#connection!;
    const read = (bytes: Uint8Array) => {
      if (!this.#isHeard(bytes)) {
        return;
      }
      try {
        this.#reader.read(bytes);
      } catch (error) {
        this.#slot.onClose(1002, `it sent no message of ours: ${(error as Error).message}`);
        this.terminate();
      }
    };
    connection.removeAllListeners('data');
    // This event brings what was read before the connection was upgraded, and all bytes where
    // direct reads are impossible.
    connection.on('data', read);
    this.#direct = DirectRead.start(connection, {
      room: () => this.#reader.room(),
      filled: (byteLength) => this.#reader.filled(byteLength),
      onRead: read,
    });
  }

  #readByLibrary(): void {
    this.#socket.binaryType = 'nodebuffer';
    // The count comes before the library, which takes any message of up to MAX_MESSAGE_BYTES.
    this.#connection!.prependListener('data', (bytes: Buffer) => this.#isHeard(bytes));
    this.#socket.on('ping', (bytes) => this.#pong(bytes));
    this.#socket.on('pong', () => this.#ping.onPong());
    this.#socket.on('message', (data, isBinary) => {
      if (this.#strangerBytes < 0) {
        return;
      }
      if (isBinary) {
        this.#slot.onBinary(data as Buffer);
      } else {
        this.#slot.onText((data as Buffer).toString());
      }
    });
  }

  /** Counts what a stranger sends, and drops one that sends too much. */
  #isHeard(bytes: Uint8Array): boolean {
    if (this.#strangerBytes < 0) {
      return false;
    }
    this.#strangerBytes -= bytes.length;
    if (this.#strangerBytes >= 0) {
      return true;
    }
    this.#slot.onClose(1009, `it said more than ${STRANGER_BYTES} bytes without a proof`);
    this.terminate();
    return false;
  }

  #pong(bytes: Uint8Array): void {
    const isTrusted = this.#strangerBytes === Infinity;
    if (isTrusted && this.unsentBytes <= MAX_UNREAD_PONG_BYTES) {
      this.#socket.pong(bytes);
    }
  }

  #onCloseFrame(code: number, reason: string): void {
    this.#slot.onClose(code, code === NO_STATUS ? 'it closed its connection' : reason);
    if (!this.#hasClosed) {
      this.close(1000, '');
    }
    this.#connection!.end();
  }
}
