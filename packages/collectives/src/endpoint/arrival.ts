// One message from one peer, which meets its receiver in either order. Before the receiver has
// named its buffer, the bytes are held in scratch memory; after that they go straight into the
// buffer. A receiver that only reads names no buffer: it reads the scratch memory, or the sender's
// own memory where the transport can lend it.

import type { MessageHeader, MessageSink } from '../transport.js';
import type { Call } from './call.js';
import { AT_ONCE_BYTES, copyBytes } from './copy-bytes.js';
import type { ScratchPool } from './scratch-pool.js';
import type { Turns } from './turns.js';

/** The bytes of a message, which may be read until `release`. */
export interface Borrowed {
  readonly bytes: Uint8Array;
  /**
   * Ends the reading. Returns false where the sender took its memory back before: what was read may
   * then be anything.
   */
  release(): boolean;
}

/**
 * Stands for what will never come in a job that has failed elsewhere, until this rank hears of it.
 */
const NEVER = new Promise<void>(() => {});

/**
 * Ends the reading of several messages. Where a sender took its memory back before, that rank has
 * failed, and nobody may see what was made of its bytes: the returned promise then stays pending
 * until the failure ends the call. Otherwise nothing is returned.
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

  /** Whether the whole message is here, though some of it may still be being copied. */
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
      this.#held ??= this.#services.scratch.take(byteLength);
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

  /**
   * Names the buffer, which has the message's length; resolves when all of the message is in it.
   */
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

  /** Asks for the bytes to read them; resolves when all of them are here. */
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

  /**
   * Ignores what still arrives, and leaves its promises pending: buffers are their owners' again.
   */
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
