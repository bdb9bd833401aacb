// One message from one peer, which meets its receiver in either order. Before the receiver has
// named its buffer, the bytes are held in scratch memory; after that they go straight into the
// buffer. A receiver that only reads names no buffer: it reads the scratch memory, or the sender's
// own memory where the transport can lend it.

import type { MessageHeader, MessageSink } from '../transport.js';
import { type Borrowed, HeldBytes, NO_BYTES } from './borrowed.js';
import type { Call } from './call.js';
import { AT_ONCE_BYTES, copyBytes } from './copy-bytes.js';
import type { ScratchPool } from './scratch-pool.js';
import type { Turns } from './turns.js';

/** What arrivals of one rank share. */
export interface ArrivalServices {
  readonly scratch: ScratchPool;
  readonly turns: Turns;
}

export class Arrival implements MessageSink {
  /** The `recv` that has asked for the message, where the message is one of `send`. */
  receiver: Call | undefined;
  readonly #services: ArrivalServices;
  /**
   * Whether it may be written before it is posted: messages of `send` don't wait for their `recv`.
   */
  readonly #isEager: boolean;
  #header: MessageHeader | undefined;
  /** The length that the receiver has named; undefined before that. */
  #expectedBytes: number | undefined;
  #target: Uint8Array | undefined;
  /** What came without a target: the bytes that are held in scratch memory, or all that is lent. */
  #held: Borrowed | undefined;
  #received = 0;
  #isCancelled = false;
  #onComplete: (() => void) | undefined;
  #onProgress: (() => void) | undefined;
  #posted: Promise<void> | undefined;
  #onPosted: (() => void) | undefined;
  #onClaimed: (() => void) | undefined;

  constructor(services: ArrivalServices, isEager: boolean) {
    this.#services = services;
    this.#isEager = isEager;
  }

  get header(): MessageHeader | undefined {
    return this.#header;
  }

  /** Whether the whole message is here, though some of it may still be being copied. */
  get hasArrived(): boolean {
    return this.#header !== undefined && this.#received === this.#header.byteLength;
  }

  /** See #expectedBytes. */
  get expectedBytes(): number | undefined {
    return this.#expectedBytes;
  }

  get posted(): Promise<void> | undefined {
    if (this.#isEager || this.#expectedBytes !== undefined || this.#isCancelled) {
      return undefined;
    }
    this.#posted ??= new Promise((resolve) => {
      this.#onPosted = resolve;
    });
    return this.#posted;
  }

  get lend(): MessageSink['lend'] {
    const isReader = this.#expectedBytes !== undefined && this.#target === undefined;
    if (!isReader || this.#received > 0 || this.#isCancelled) {
      return undefined;
    }
    return (bytes, release) => {
      this.#held = { bytes, release };
      this.#received = bytes.byteLength;
      this.#settle();
    };
  }

  /**
   * Begins the message. `onClaimed` is called when a receiver asks for it, unless one has already.
   */
  begin(header: MessageHeader, onClaimed?: () => void): void {
    this.#header = header;
    this.#onClaimed = onClaimed;
    this.#settle();
  }

  write(chunk: Uint8Array): void {
    if (this.#isCancelled) {
      return;
    }
    const { byteLength } = this.#header!;
    if (this.#received + chunk.byteLength > byteLength) {
      const written = this.#received + chunk.byteLength;
      throw new RangeError(`a transport wrote ${written} bytes of a message of ${byteLength}`);
    }
    if (this.#target === undefined) {
      this.#held ??= new HeldBytes(this.#services.scratch, byteLength);
      this.#held.bytes.set(chunk, this.#received);
    } else {
      this.#target.set(chunk, this.#received);
    }
    this.#received += chunk.byteLength;
    this.#settle();
  }

  get room(): Uint8Array | undefined {
    if (this.#expectedBytes === undefined || this.#isCancelled) {
      return undefined;
    }
    const { byteLength } = this.#header!;
    const target = this.#target;
    if (target === undefined) {
      this.#held ??= new HeldBytes(this.#services.scratch, byteLength);
      return this.#held.bytes.subarray(this.#received, byteLength);
    }
    // What was held may still be on its way into the target.
    return this.#held === undefined ? target.subarray(this.#received, byteLength) : undefined;
  }

  filled(byteLength: number): void {
    this.#received += byteLength;
    this.#settle();
  }

  /**
   * Names the buffer, which has the message's length; resolves when all of the message is in it.
   */
  post(target: Uint8Array, onProgress: () => void): Promise<void> {
    this.#expect(target.byteLength);
    this.#target = target;
    const held = this.#held;
    if (held !== undefined && this.#received <= AT_ONCE_BYTES) {
      const isWhole = this.#received === target.byteLength;
      target.set(isWhole ? held.bytes : held.bytes.subarray(0, this.#received));
      held.release();
      this.#held = undefined;
    } else if (held !== undefined) {
      void this.#copyHeld(target, held);
    }
    return this.#complete(onProgress);
  }

  /** Asks for the bytes to read them; resolves when all of them are here. */
  async borrow(byteLength: number, onProgress: () => void): Promise<Borrowed> {
    this.#expect(byteLength);
    await this.#complete(onProgress);
    return this.#held ?? NO_BYTES;
  }

  /**
   * Ignores what still arrives, and leaves its promises pending: buffers are their owners' again.
   */
  cancel(): void {
    this.#isCancelled = true;
    this.#onComplete = undefined;
    this.#held?.release();
    this.#onPosted?.();
  }

  #expect(expectedBytes: number): void {
    if (this.#header !== undefined && this.#header.byteLength !== expectedBytes) {
      const { byteLength } = this.#header;
      throw new RangeError(`it sent ${byteLength} bytes where ${expectedBytes} were expected`);
    }
    this.#expectedBytes = expectedBytes;
    this.#onClaimed?.();
  }

  #complete(onProgress: () => void): Promise<void> {
    this.#onProgress = onProgress;
    return new Promise((resolve) => {
      this.#onComplete = resolve;
      this.#onPosted?.();
      this.#settle();
    });
  }

  async #copyHeld(target: Uint8Array, held: Borrowed): Promise<void> {
    const bytes = held.bytes.subarray(0, this.#received);
    await copyBytes(target, bytes, this.#services.turns, () => this.#isCancelled);
    if (!this.#isCancelled) {
      held.release();
      this.#held = undefined;
      this.#settle();
    }
  }

  #settle(): void {
    if (this.#isCancelled) {
      return;
    }
    this.#onProgress?.();
    const isCopying = this.#held !== undefined && this.#target !== undefined;
    if (this.hasArrived && !isCopying) {
      this.#onComplete?.();
    }
  }
}
