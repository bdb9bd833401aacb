// Takes room in the heap. Where there is none, those that keep memory for reuse give it back first.

import { OutOfMemoryError } from '../../errors.js';
import type { Heap } from './heap.js';
import type { WasmMemory } from './wasm-memory.js';

/**
 * The size from which on memory that is kept for reuse is given back before the memory grows, as a
 * WebAssembly memory never shrinks. Smaller pieces are not worth that and find room in holes.
 */
const LARGE_BYTES = 2 ** 20;

export class Room {
  readonly #heap: Heap;
  readonly #memory: WasmMemory;
  readonly #relievers = new Set<() => void>();
  /** The bytes of allocated buffers, which messages name. */
  liveBytes = 0;

  constructor(heap: Heap, memory: WasmMemory) {
    this.#heap = heap;
    this.#memory = memory;
  }

  onPressure(relieve: () => void): () => void {
    this.#relievers.add(relieve);
    return () => this.#relievers.delete(relieve);
  }

  /**
   * Takes room and returns its address.
   * @throws {OutOfMemoryError} where there is none, even after memory kept for reuse was given back
   */
  reserve(byteLength: number, label: string): number {
    const isGrowing = byteLength >= LARGE_BYTES && !this.#heap.hasRoom(byteLength);
    const address = isGrowing ? 0 : this.#heap.alloc(byteLength);
    if (address !== 0) {
      return address;
    }
    for (const relieve of this.#relievers) {
      relieve();
    }
    const second = this.#heap.alloc(byteLength);
    if (second !== 0) {
      return second;
    }
    const { byteLength: reservedBytes, maxBytes } = this.#memory;
    throw new OutOfMemoryError(
      `cpu: expected room for ${byteLength} bytes (${label}), got none: ${this.liveBytes} are in use, the WebAssembly memory has ${reservedBytes} and may grow to ${maxBytes}, which ends at 4 GiB.`,
      {
        requestedBytes: byteLength,
        liveBytes: this.liveBytes,
        reservedBytes,
        limitBytes: maxBytes,
      },
    );
  }
}
