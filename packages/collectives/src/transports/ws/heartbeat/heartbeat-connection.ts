// One connection of a heartbeat worker in Node: small binary messages, framed and read like those
// of links.

import type { Socket } from 'node:net';
import { FrameWriter } from '../../../sockets/frame-writer.js';
import { nameOf } from '../../../sockets/listener.js';
import { WebSocketReader } from '../../../sockets/websocket-reader.js';

export interface HeartbeatConnectionOptions {
  /** Whether this end has opened the connection; if not, the peer is a stranger until `trust`. */
  readonly isClient: boolean;
  /** Called with a message, whose bytes belong to the receiver. */
  onBinary(bytes: Uint8Array): void;
  /** Called once, with the code of the peer's close frame, or 1006 where it had none. */
  onClose(code: number, reason: string): void;
}

/** The longest message. Those of a handshake fit, with room to spare. */
const MAX_MESSAGE_BYTES = 125;

const NO_STATUS = 1005;
const NO_CLOSE_FRAME = 1006;

export class HeartbeatConnection {
  /** The peer's address and port, kept because a closed socket has forgotten them. */
  readonly name: string;
  readonly #socket: Socket;
  readonly #writer: FrameWriter;
  readonly #reader: WebSocketReader;
  readonly #options: HeartbeatConnectionOptions;
  /** A stranger may send a single message, its proof. */
  #isTrusted: boolean;
  #hasSpoken = false;
  #code = NO_CLOSE_FRAME;
  #reason = 'its connection ended';

  constructor(socket: Socket, options: HeartbeatConnectionOptions) {
    this.name = nameOf(socket);
    this.#socket = socket;
    this.#options = options;
    this.#isTrusted = options.isClient;
    this.#writer = new FrameWriter(socket, options.isClient);
    const drop = () => this.drop(); // no process of this package sends such a thing
    this.#reader = new WebSocketReader(
      {
        onBinary: (bytes) => this.#onBinary(bytes),
        room: () => undefined,
        filled: () => {},
        onText: drop,
        onPing: drop,
        onPong: drop,
        onClose: (code, reason) => this.#onCloseFrame(code, reason),
      },
      MAX_MESSAGE_BYTES,
    );
  }

  get unsentBytes(): number {
    return this.#socket.writableLength;
  }

  /** Reads what came with the upgrade, and then what comes later. */
  begin(head: Buffer = Buffer.alloc(0)): void {
    const socket = this.#socket;
    socket.setNoDelay(true);
    socket.on('data', (bytes: Buffer) => this.#read(bytes));
    socket.on('error', (error) => {
      this.#reason = error.message;
    });
    socket.on('close', () => this.#options.onClose(this.#code, this.#reason));
    if (head.length > 0) {
      this.#read(head);
    }
    socket.resume();
  }

  /** Notes that the peer is authenticated. */
  trust(): void {
    this.#isTrusted = true;
  }

  send(bytes: Uint8Array): void {
    this.#writer.binary(bytes);
  }

  /** Sends the reason, and ends the connection. */
  close(code: number, reason: string): void {
    this.#writer.close(code, reason);
    this.#socket.end();
  }

  /** Ends the connection without a word. */
  drop(): void {
    this.#socket.destroy();
  }

  #read(bytes: Uint8Array): void {
    try {
      this.#reader.read(bytes);
    } catch {
      this.drop();
    }
  }

  #onBinary(bytes: Uint8Array): void {
    if (this.#hasSpoken && !this.#isTrusted) {
      this.drop();
    } else if (!this.#socket.destroyed) {
      this.#hasSpoken = true;
      this.#options.onBinary(bytes.slice());
    }
  }

  #onCloseFrame(code: number, reason: string): void {
    if (code !== NO_STATUS) {
      this.#code = code;
    }
    this.#reason = reason || this.#reason;
    this.close(code === NO_STATUS ? 1000 : code, '');
  }
}
