// Writes WebSocket frames (RFC 6455) to a connection between two processes of this package: only
// final frames, each in one write where it is short. websocket-reader.ts reads them.

import type { Socket } from 'node:net';
import { closeReasonBytes } from './close-reason.js';

type Written = (error?: Error | null) => void;

/** Up to this size, one write of a copy costs less than a write of two buffers. */
const COPY_MAX_BYTES = 16 * 1024 + 512;

const FINAL_TEXT = 0x81;
const FINAL_BINARY = 0x82;
const FINAL_CLOSE = 0x88;
const MASKED = 0x80;

export class FrameWriter {
  readonly #connection: Socket;
  readonly #isClient: boolean;

  /**
   * A client has to mask its frames. This one masks with zeros, which change nothing: masks protect
   * proxies, and there is none between these processes.
   */
  constructor(connection: Socket, isClient: boolean) {
    this.#connection = connection;
    this.#isClient = isClient;
  }

  /** Sends the bytes, which are lent until `written` is called. */
  binary(bytes: Uint8Array, written?: Written): void {
    this.#write(FINAL_BINARY, bytes, written);
  }

  text(text: string): void {
    this.#write(FINAL_TEXT, Buffer.from(text));
  }

  /** Sends a close frame; a reason that is too long is cut. */
  close(code: number, reason: string): void {
    const bytes = closeReasonBytes(reason);
    this.#write(FINAL_CLOSE, Buffer.concat([Buffer.from([code >> 8, code & 255]), bytes]));
  }

  #write(first: number, bytes: Uint8Array, written?: Written): void {
    const connection = this.#connection;
    const { length } = bytes;
    const lengthBytes = length < 126 ? 0 : length < 65_536 ? 2 : 8;
    const headBytes = 2 + lengthBytes + (this.#isClient ? 4 : 0);
    const isCopied = length <= COPY_MAX_BYTES;
    const head = Buffer.allocUnsafe(headBytes + (isCopied ? length : 0));
    head[0] = first;
    head[1] =
      (lengthBytes === 0 ? length : lengthBytes === 2 ? 126 : 127) | (this.#isClient ? MASKED : 0);
    if (lengthBytes === 2) {
      head.writeUInt16BE(length, 2);
    } else if (lengthBytes === 8) {
      head.writeBigUInt64BE(BigInt(length), 2);
    }
    head.fill(0, 2 + lengthBytes, headBytes);
    if (isCopied) {
      head.set(bytes, headBytes);
      connection.write(head, written);
      return;
    }
    connection.cork();
    connection.write(head);
    connection.write(bytes, written);
    connection.uncork();
  }
}
