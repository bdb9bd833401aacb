// One message from one peer: it meets its receiver in either order. Before the receiver has named
// its buffer, bytes are held in scratch; after, they go straight into it.

import type { ScratchPool } from './scratch-pool.js';
import type { MessageHeader, MessageSink } from './transport.js';

export class Arrival implements MessageSink {
  readonly #scratch: ScratchPool;
  #header: MessageHeader | undefined;
  #target: Uint8Array | undefined;
  #held: Uint8Array | undefined;
  #received = 0;
  #isCancelled = false;
  #resolve: (() => void) | undefined;

  constructor(scratch: ScratchPool) {
    this.#scratch = scratch;
  }

  get header(): MessageHeader | undefined {
    return this.#header;
  }

  get isPosted(): boolean {
    return this.#target !== undefined;
  }

  get isComplete(): boolean {
    return this.#header !== undefined && this.#received === this.#header.byteLength;
  }

  /** The length of the receiver's buffer, once it has named one. */
  get expectedBytes(): number | undefined {
    return this.#target?.byteLength;
  }

  /** The message begins. */
  begin(header: MessageHeader): void {
    this.#header = header;
    this.#settle();
  }

  write(chunk: Uint8Array): void {
    if (this.#isCancelled) {
      return;
    }
    if (this.#target === undefined) {
      this.#held ??= this.#scratch.take(this.#header!.byteLength);
      this.#held.set(chunk, this.#received);
    } else {
      this.#target.set(chunk, this.#received);
    }
    this.#received += chunk.byteLength;
    this.#settle();
  }

  /** Names the buffer, of the message's length; resolves when all of it is there. */
  post(target: Uint8Array): Promise<void> {
    if (this.#header !== undefined && this.#header.byteLength !== target.byteLength) {
      const { byteLength } = this.#header;
      throw new Error(`expected a message of ${target.byteLength} bytes, got ${byteLength}`);
    }
    this.#target = target;
    if (this.#held !== undefined) {
      target.set(this.#held.subarray(0, this.#received));
      this.#scratch.give(this.#held);
      this.#held = undefined;
    }
    return new Promise((resolve) => {
      this.#resolve = resolve;
      this.#settle();
    });
  }

  /** What still arrives is dropped: the buffer is the caller's again. Its promise stays pending. */
  cancel(): void {
    this.#isCancelled = true;
    this.#resolve = undefined;
    this.#held = undefined;
  }

  #settle(): void {
    if (this.isComplete) {
      this.#resolve?.();
    }
  }
}
