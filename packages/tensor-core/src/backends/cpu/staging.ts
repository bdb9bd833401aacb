// Staging is a ring inside the linear memory for bytes on their way from the host into the queue. A
// piece is free again when the command that reads it has run, so the host never overwrites bytes
// that a queued command still needs.

import type { WasmMemory } from './wasm-memory.js';

const ALIGNMENT = 64;

interface Piece {
  readonly end: number;
  /** The number of the command that reads the piece. */
  readonly command: number;
}

export class Staging {
  readonly #memory: WasmMemory;
  readonly #base: number;
  readonly #capacity: number;
  /** The next byte to hand out, and below the first byte of the oldest piece in use. */
  #head = 0;
  #tail = 0;
  #pieces: Piece[] = [];
  #first = 0;

  /** Makes a ring over `capacity` bytes from address `base` on. */
  constructor(memory: WasmMemory, base: number, capacity: number) {
    this.#memory = memory;
    this.#base = base;
    this.#capacity = capacity;
  }

  /** The largest piece that may be put, which surely fits once the ring is empty. */
  get maxPieceBytes(): number {
    return this.#capacity >> 2;
  }

  /**
   * Copies `bytes` in for command number `command` and returns their address, or 0 where there is
   * no room until commands beyond `completed` have run.
   */
  put(bytes: Uint8Array, command: number, completed: number): number {
    const size = Math.ceil(Math.max(1, bytes.byteLength) / ALIGNMENT) * ALIGNMENT;
    this.#reclaim(completed);
    const at = this.#fit(size);
    if (at < 0) {
      return 0;
    }
    this.#head = at + size;
    this.#pieces.push({ end: this.#head, command });
    this.#memory.bytes.set(bytes, this.#base + at);
    return this.#base + at;
  }

  #reclaim(completed: number): void {
    while (this.#first < this.#pieces.length) {
      const piece = this.#pieces[this.#first]!;
      if (((completed - piece.command) | 0) <= 0) {
        break;
      }
      this.#tail = piece.end;
      this.#first++;
    }
    if (this.#first === this.#pieces.length) {
      this.#pieces = [];
      this.#first = 0;
      this.#head = 0;
      this.#tail = 0;
    } else if (this.#first > 1024) {
      this.#pieces = this.#pieces.slice(this.#first);
      this.#first = 0;
    }
  }

  /** Returns the offset of `size` free bytes in one run, or -1 where there is no such run. */
  #fit(size: number): number {
    const isEmpty = this.#first === this.#pieces.length;
    if (isEmpty || this.#head > this.#tail) {
      if (this.#head + size <= this.#capacity) {
        return this.#head;
      }
      // The ring goes on at its start. It never fills up to the tail, or full would look like
      // empty.
      return size < this.#tail ? 0 : -1;
    }
    return this.#head + size < this.#tail ? this.#head : -1;
  }
}
