// One message from one peer, which meets its receiver in either order. Before the receiver has
// named its buffer, bytes are held in scratch; after that they go straight into it. A receiver that
// only reads names no buffer: it gets the scratch, or the sender's own memory where the transport
// can lend it.

import type { MessageHeader, MessageSink } from '../transport.js';
import type { Call } from './call.js';
import { AT_ONCE_BYTES, copyBytes } from './copy-bytes.js';
import type { ScratchPool } from './scratch-pool.js';
import type { Turns } from './turns.js';

/** The bytes of a message, which may be read until `release`. */
export interface Borrowed {
  readonly bytes: Uint8Array;
  /** Returns false where the sender had its memory back already: what was read may be anything. */
  release(): boolean;
}

/** What is awaited in a job that has failed elsewhere, until this rank hears of it. */
const NEVER = new Promise<void>(() => {});

/**
 * Ends the reading of several messages. Where a sender had its memory back already, that rank has
 * failed, and nobody may see what was made of it: then there is a promise that stays pending until
 * the failure ends the call.
 */
export function giveBack(borrowed: readonly Borrowed[]): Promise<void> | undefined {
  const wereWhole = borrowed.map(({ release }) => release());
  return wereWhole.includes(false) ? NEVER : undefined;
}

/** What arrivals of one rank share. */
export interface ArrivalServices {
  readonly scratch: ScratchPool;
  readonly turns: Turns;
}

const EMPTY = new Uint8Array(0);

export class Arrival implements MessageSink {
  /** The `recv` that has asked for the message, where `send` sends it. */
  receiver: Call | undefined;
  readonly #services: ArrivalServices;
  /** Whether it is written before it is posted: messages of `send` don't wait for their `recv`. */
  readonly #isEager: boolean;
  #header: MessageHeader | undefined;
  /** The length that the receiver has named, once it has. */
  #expectedBytes: number | undefined;
  #target: Uint8Array | undefined;
  #held: Uint8Array | undefined;
  #lent: Borrowed | undefined;
  #received = 0;
  #isCopying = false;
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

  get isPosted(): boolean {
    return this.#expectedBytes !== undefined;
  }

  /** Whether nothing of the message is missing, though some of it may still be copied here. */
  get hasArrived(): boolean {
    const header = this.#header;
    const isWhole = this.#lent !== undefined || this.#received === header?.byteLength;
    return header !== undefined && isWhole;
  }

  /** See #expectedBytes. */
  get expectedBytes(): number | undefined {
    return this.#expectedBytes;
  }

  get posted(): Promise<void> | undefined {
    if (this.#isEager || this.isPosted || this.#isCancelled) {
      return undefined;
    }
    this.#posted ??= new Promise((resolve) => {
      this.#onPosted = resolve;
    });
    return this.#posted;
  }

  get lend(): MessageSink['lend'] {
    const isReader = this.isPosted && this.#target === undefined;
    if (!isReader || this.#received > 0 || this.#isCancelled) {
      return undefined;
    }
    return (bytes, release) => {
      this.#lent = { bytes, release };
      this.#settle();
    };
  }

  /** The message begins. `onClaimed` is called when a receiver asks for it, if none has yet. */
  begin(header: MessageHeader, onClaimed?: () => void): void {
    this.#header = header;
    this.#onClaimed = onClaimed;
    this.#settle();
  }

  write(chunk: Uint8Array): void {
    if (this.#isCancelled) {
      return;
    }
    if (this.#target === undefined) {
      this.#held ??= this.#services.scratch.take(this.#header!.byteLength);
      this.#held.set(chunk, this.#received);
    } else {
      this.#target.set(chunk, this.#received);
    }
    this.#received += chunk.byteLength;
    this.#settle();
  }

  get room(): Uint8Array | undefined {
    if (!this.isPosted || this.#isCancelled || this.#isCopying) {
      return undefined;
    }
    const { byteLength } = this.#header!;
    if (this.#target === undefined) {
      this.#held ??= this.#services.scratch.take(byteLength);
    }
    return (this.#target ?? this.#held!).subarray(this.#received, byteLength);
  }

  filled(byteLength: number): void {
    this.#received += byteLength;
    this.#settle();
  }

  /** Names the buffer, of the message's length; resolves when all of it is there. */
  post(target: Uint8Array, onProgress: () => void): Promise<void> {
    this.#expect(target.byteLength);
    this.#target = target;
    const held = this.#held;
    if (held !== undefined && this.#received <= AT_ONCE_BYTES) {
      target.set(held.subarray(0, this.#received));
      this.#giveBack();
    } else if (held !== undefined) {
      this.#isCopying = true;
      void this.#copyHeld(target, held.subarray(0, this.#received));
    }
    return this.#complete(onProgress);
  }

  /** Asks for bytes to read; resolves when all of them are there. */
  async borrow(byteLength: number, onProgress: () => void): Promise<Borrowed> {
    this.#expect(byteLength);
    await this.#complete(onProgress);
    const lent = this.#lent;
    if (lent !== undefined) {
      return lent;
    }
    const bytes = this.#held ?? EMPTY;
    return {
      bytes,
      release: () => {
        this.#giveBack();
        return true;
      },
    };
  }

  /** Drops what still arrives: buffers are their owners' again. Its promises stay pending. */
  cancel(): void {
    this.#isCancelled = true;
    this.#onComplete = undefined;
    this.#held = undefined;
    this.#lent?.release();
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

  async #copyHeld(target: Uint8Array, held: Uint8Array): Promise<void> {
    await copyBytes(target, held, this.#services.turns, () => this.#isCancelled);
    if (!this.#isCancelled) {
      this.#isCopying = false;
      this.#giveBack();
      this.#settle();
    }
  }

  #giveBack(): void {
    if (this.#held !== undefined) {
      this.#services.scratch.give(this.#held);
      this.#held = undefined;
    }
  }

  #settle(): void {
    if (this.#isCancelled) {
      return;
    }
    this.#onProgress?.();
    if (this.hasArrived && !this.#isCopying) {
      this.#onComplete?.();
    }
  }
}
