// One direction of a proxied connection: bytes come out in order, delayed and no faster than the
// limit. While it is stalled, nothing comes out and nothing is read.

import type { Socket } from 'node:net';
import type { SeededRandom } from '../simulator/seeded-random.js';

/** The delay, the jitter and the rate of one direction of a link. */
export interface LinkShape {
  /** The milliseconds that each byte is delayed. Default: 0. */
  readonly delayMs?: number;
  /** Up to so many milliseconds more, drawn for each piece; the order is kept. Default: 0. */
  readonly jitterMs?: number;
  /** The most bytes a second. Default: no limit. */
  readonly bytesPerSecond?: number;
}

/** A piece of what came in, or the end (null). */
interface Piece {
  readonly dueMs: number;
  readonly bytes: Uint8Array | null;
}

/** A limited link passes bytes on in pieces of this size, so that they flow. */
const PIECE_BYTES = 16 * 1024;

/**
 * The most bytes that are held; above it the sender is not read. A fast link with a delay of 100 ms
 * holds less.
 */
const MAX_HELD_BYTES = 64 * 2 ** 20;

export class DelayLine {
  readonly #from: Socket;
  readonly #to: Socket;
  readonly #random: SeededRandom;
  readonly #onBytes: (byteLength: number) => void;
  readonly #held: Piece[] = [];
  #shape: LinkShape;
  #heldBytes = 0;
  #wireFreeMs = 0;
  #lastDueMs = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #isStalled = false;
  #isFull = false;

  constructor(
    from: Socket,
    to: Socket,
    options: {
      readonly shape: LinkShape;
      readonly random: SeededRandom;
      onBytes(byteLength: number): void;
    },
  ) {
    this.#from = from;
    this.#to = to;
    this.#shape = options.shape;
    this.#random = options.random;
    this.#onBytes = options.onBytes;
    from.on('data', (chunk: Buffer) => this.#take(chunk));
    from.on('end', () => this.#hold(null, performance.now()));
    to.on('drain', () => {
      this.#isFull = false;
      this.#pump();
    });
  }

  /** Sets the shape for what comes in from now on. */
  reshape(shape: LinkShape): void {
    this.#shape = shape;
  }

  stall(): void {
    this.#isStalled = true;
    this.#from.pause();
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  resume(): void {
    this.#isStalled = false;
    this.#from.resume();
    this.#pump();
  }

  close(): void {
    clearTimeout(this.#timer);
    this.#held.length = 0;
    this.#isStalled = true;
  }

  #take(chunk: Buffer): void {
    const { bytesPerSecond = Infinity } = this.#shape;
    const pieceBytes = Number.isFinite(bytesPerSecond) ? PIECE_BYTES : chunk.length;
    for (let at = 0; at < chunk.length; at += pieceBytes) {
      const bytes = chunk.subarray(at, at + pieceBytes);
      this.#wireFreeMs =
        Math.max(this.#wireFreeMs, performance.now()) + (bytes.length / bytesPerSecond) * 1000;
      this.#hold(bytes, this.#wireFreeMs);
    }
    if (this.#heldBytes > MAX_HELD_BYTES) {
      this.#from.pause();
    }
    this.#pump();
  }

  #hold(bytes: Uint8Array | null, sentMs: number): void {
    const { delayMs = 0, jitterMs = 0 } = this.#shape;
    const arrivalMs = sentMs + delayMs + this.#random.between(0, jitterMs);
    this.#lastDueMs = Math.max(this.#lastDueMs, arrivalMs);
    this.#held.push({ dueMs: this.#lastDueMs, bytes });
    this.#heldBytes += bytes?.length ?? 0;
    this.#pump();
  }

  #pump(): void {
    while (this.#held.length > 0 && !this.#isStalled && !this.#isFull) {
      const { dueMs, bytes } = this.#held[0]!;
      const waitMs = dueMs - performance.now();
      if (waitMs > 0) {
        this.#timer ??= setTimeout(() => {
          this.#timer = undefined;
          this.#pump();
        }, waitMs);
        return;
      }
      this.#held.shift();
      if (bytes === null) {
        this.#to.end();
        return;
      }
      this.#heldBytes -= bytes.length;
      this.#onBytes(bytes.length);
      this.#isFull = !this.#to.write(bytes);
    }
    if (this.#heldBytes <= MAX_HELD_BYTES && !this.#isStalled) {
      this.#from.resume();
    }
  }
}
