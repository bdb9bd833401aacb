// The place of a socket's handler: what arrives while there is none waits for the next handler.
// Every WireSocket has such a place.

import { printable } from '../printable.js';
import type { WireHandler } from './wire-socket.js';

/** A peer's reason has at most 123 bytes; what this process says of an end may be longer. */
const MAX_REASON_LENGTH = 300;

export class HandlerSlot {
  #handler: WireHandler | undefined;
  #waiting: ((handler: WireHandler) => void)[] = [];
  #isClosed = false;

  setHandler(handler: WireHandler | undefined): void {
    this.#handler = handler;
    // A handler may hand the socket on to another one while it receives what has waited.
    while (this.#handler !== undefined && this.#waiting.length > 0) {
      this.#waiting.shift()!(this.#handler);
    }
  }

  /** Passes bytes on, or copies them where they have to wait, because they are lent. */
  onBinary(bytes: Uint8Array): void {
    if (this.#handler !== undefined) {
      this.#handler.onBinary(bytes);
      return;
    }
    const copy = bytes.slice();
    this.#waiting.push((handler) => handler.onBinary(copy));
  }

  room(): Uint8Array | undefined {
    return this.#handler?.room?.();
  }

  filled(byteLength: number): void {
    this.#handler?.filled?.(byteLength);
  }

  onText(text: string): void {
    this.#tell((handler) => handler.onText(text));
  }

  /** Passes on the first end only, whose reason may be the peer's words. */
  onClose(code: number, reason: string): void {
    if (!this.#isClosed) {
      this.#isClosed = true;
      const words = printable(reason, MAX_REASON_LENGTH);
      this.#tell((handler) => handler.onClose(code, words));
    }
  }

  #tell(what: (handler: WireHandler) => void): void {
    if (this.#handler === undefined) {
      this.#waiting.push(what);
    } else {
      what(this.#handler);
    }
  }
}
