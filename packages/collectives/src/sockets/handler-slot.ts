// The place of a socket's handler: what arrives while nobody is named there waits for the next
// handler. Every WireSocket has one.

import type { WireHandler } from './wire-socket.js';

export class HandlerSlot {
  #handler: WireHandler | undefined;
  #waiting: ((handler: WireHandler) => void)[] = [];
  #isClosed = false;

  setHandler(handler: WireHandler | undefined): void {
    this.#handler = handler;
    // A handler may hand the socket on to another while it hears of what has waited.
    while (this.#handler !== undefined && this.#waiting.length > 0) {
      this.#waiting.shift()!(this.#handler);
    }
  }

  /** Copies bytes that have to wait, since they are lent. */
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

  /** Tells of the first end alone. */
  onClose(code: number, reason: string): void {
    if (!this.#isClosed) {
      this.#isClosed = true;
      this.#tell((handler) => handler.onClose(code, reason));
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
