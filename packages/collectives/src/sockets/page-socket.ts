// WireSocket over a page's native WebSocket. That copies what is sent and gives no sign when it has
// left, so `written` waits until little enough is buffered.

import { closeReasonBytes } from './close-reason.js';
import { HandlerSlot } from './handler-slot.js';
import type { PageLooks } from './page-looks.js';
import type { WireHandler, WireSocket } from './wire-socket.js';

/**
 * Up to this many buffered bytes, a send counts as written at once: that costs no more than the
 * page's own copy.
 */
const FREE_BYTES = 2 ** 20;

export class PageSocket implements WireSocket {
  readonly #socket: WebSocket;
  readonly #slot = new HandlerSlot();
  readonly #unwritten: ((error?: Error | null) => void)[] = [];
  readonly #looks: PageLooks;
  #maxMessageBytes: number;

  /**
   * Takes a socket that is about to open, because the listener's first message comes with the
   * opening.
   */
  constructor(socket: WebSocket, maxMessageBytes: number, looks: PageLooks) {
    this.#socket = socket;
    this.#looks = looks;
    this.#maxMessageBytes = maxMessageBytes;
    socket.binaryType = 'arraybuffer';
    socket.onmessage = ({ data }: MessageEvent<string | ArrayBuffer>) => this.#onMessage(data);
    socket.onclose = ({ code, reason }) => this.#onClose(code, reason);
  }

  get unsentBytes(): number {
    return this.#socket.bufferedAmount;
  }

  setHandler(handler: WireHandler | undefined): void {
    this.#slot.setHandler(handler);
  }

  trust(maxMessageBytes: number): void {
    this.#maxMessageBytes = maxMessageBytes;
  }

  send(bytes: Uint8Array, written?: (error?: Error | null) => void): void {
    if (this.#socket.readyState !== WebSocket.OPEN) {
      written?.(new Error('the connection is closed'));
      return;
    }
    // A page's WebSocket refuses views of shared memory.
    const isShared = !(bytes.buffer instanceof ArrayBuffer);
    this.#socket.send(isShared ? bytes.slice() : (bytes as Uint8Array<ArrayBuffer>));
    if (written !== undefined) {
      this.#unwritten.push(written);
      this.#look();
    }
  }

  sendText(text: string): void {
    if (this.#socket.readyState === WebSocket.OPEN) {
      this.#socket.send(text);
    }
  }

  batch(body: () => void): void {
    body();
  }

  close(code: number, reason: string): void {
    this.#socket.close(code, new TextDecoder().decode(closeReasonBytes(reason)));
  }

  /**
   * Closes the connection. A page can't drop one without a word: it sends 1001 by itself where it
   * goes away.
   */
  terminate(): void {
    this.#socket.onmessage = null;
    this.#socket.close();
    this.#onClose(1006, 'dropped');
  }

  readonly #look = (): void => {
    if (this.#socket.bufferedAmount > FREE_BYTES) {
      if (this.#unwritten.length > 0) {
        this.#looks.add(this.#look);
      }
      return;
    }
    // The callbacks run in a later microtask, because a sender doesn't expect the answer within its
    // call.
    const done = this.#unwritten.splice(0);
    if (done.length > 0) {
      queueMicrotask(() => {
        for (const written of done) {
          written();
        }
      });
    }
  };

  #onMessage(data: string | ArrayBuffer): void {
    if (typeof data === 'string') {
      this.#slot.onText(data);
    } else if (data.byteLength > this.#maxMessageBytes) {
      this.#onClose(1009, `it sent ${data.byteLength} bytes in one message`);
      this.#socket.close();
    } else {
      this.#slot.onBinary(new Uint8Array(data));
    }
  }

  #onClose(code: number, reason: string): void {
    for (const written of this.#unwritten.splice(0)) {
      written(new Error(reason || `the connection closed, code ${code}`));
    }
    this.#slot.onClose(code, reason);
  }
}
