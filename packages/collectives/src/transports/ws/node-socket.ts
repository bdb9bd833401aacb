// WireSocket over a socket of the `ws` library.

import type { Socket } from 'node:net';
import type { WebSocket } from 'ws';
import { Inbox } from './inbox.js';
import type { WireHandler, WireSocket } from './wire-socket.js';

/** How long the peer may take to answer a close before the connection is dropped. */
const CLOSE_MS = 1000;

/** A close frame has 125 bytes, two of them the code's. */
const MAX_REASON_BYTES = 123;

const SEND_BINARY = { binary: true, compress: false, fin: true };
const SEND_TEXT = { binary: false, compress: false, fin: true };

export class NodeSocket implements WireSocket {
  readonly #socket: WebSocket;
  readonly #inbox = new Inbox();
  /** Below the WebSocket. */
  #connection: Socket | undefined;

  /** Takes a socket, open or about to be; nobody else listens to it. */
  constructor(socket: WebSocket, connection?: Socket) {
    this.#socket = socket;
    this.#connection = connection;
    socket.once('upgrade', (response) => {
      this.#connection = response.socket;
    });
    socket.binaryType = 'nodebuffer';
    socket.on('message', (data, isBinary) => {
      if (isBinary) {
        this.#inbox.onBinary(data as Buffer);
      } else {
        this.#inbox.onText((data as Buffer).toString());
      }
    });
    socket.on('error', (error) => {
      this.#inbox.onClose(1006, error.message);
      socket.terminate();
    });
    socket.on('close', (code, reason) => this.#inbox.onClose(code, reason.toString()));
  }

  /** The interface it goes out by, while it is open. */
  get localHost(): string | undefined {
    return this.#connection?.localAddress?.replace(/^::ffff:/, '');
  }

  setHandler(handler: WireHandler | undefined): void {
    this.#inbox.setHandler(handler);
  }

  send(bytes: Uint8Array, written?: (error?: Error) => void): void {
    this.#socket.send(bytes, SEND_BINARY, written ?? (() => {}));
  }

  sendText(text: string): void {
    this.#socket.send(text, SEND_TEXT, () => {});
  }

  batch(body: () => void): void {
    body();
  }

  close(code: number, reason: string): void {
    const socket = this.#socket;
    const timer = setTimeout(() => socket.terminate(), CLOSE_MS);
    socket.once('close', () => clearTimeout(timer));
    socket.close(code, Buffer.from(reason).subarray(0, MAX_REASON_BYTES));
    if (socket.readyState === socket.CLOSED) {
      clearTimeout(timer);
    }
  }

  terminate(): void {
    this.#socket.terminate();
  }

  setKeepsAlive(keepsAlive: boolean): void {
    if (keepsAlive) {
      this.#connection?.ref();
    } else {
      this.#connection?.unref();
    }
  }
}
