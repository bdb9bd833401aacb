// Allocator inside the linear memory: best fit over free runs, which merge with their neighbors.
// It knows nothing of the queue: bytes freed here may be handed out at once because whoever uses
// them next is queued later.

import type { WasmMemory } from './wasm-memory.js';

/** Blocks start and end on it, so no two share a cache line and flat parameters stay aligned. */
const ALIGNMENT = 256;
/** Kernels read whole vectors past the end of a view. */
const TAIL_BYTES = 4096;
/** The memory grows by at least this much, and by an eighth. */
const MIN_GROWTH_BYTES = 4 * 1024 * 1024;

export class Heap {
  readonly #memory: WasmMemory;
  readonly #used = new Map<number, number>();
  readonly #freeByStart = new Map<number, number>();
  readonly #freeByEnd = new Map<number, number>();
  /** Starts by size; entries that have merged away are dropped when met. */
  readonly #startsBySize = new Map<number, number[]>();
  /** Ascending keys of the above. */
  readonly #sizes: number[] = [];
  /** Everything from here on has never been handed out. */
  #top: number;

  constructor(memory: WasmMemory, base: number) {
    this.#memory = memory;
    this.#top = Math.ceil(base / ALIGNMENT) * ALIGNMENT;
  }

  /** Address of a block, or 0 where there is no room. */
  alloc(byteLength: number): number {
    const size = roundUp(byteLength);
    const start = this.#takeFree(size);
    if (start === 0) {
      return this.#extend(size);
    }
    this.#used.set(start, size);
    return start;
  }

  /** Whether a block has room in what the memory has grown to. */
  hasRoom(byteLength: number): boolean {
    const size = roundUp(byteLength);
    const tail = this.#freeByEnd.get(this.#top) ?? 0;
    if (this.#top - tail + size + TAIL_BYTES <= this.#memory.byteLength) {
      return true;
    }
    return [...this.#freeByStart.values()].some((free) => free >= size);
  }

  free(start: number): void {
    let size = this.#used.get(start)!;
    this.#used.delete(start);
    let from = start;
    const after = this.#freeByStart.get(start + size);
    if (after !== undefined) {
      this.#forget(start + size, after);
      size += after;
    }
    const before = this.#freeByEnd.get(start);
    if (before !== undefined) {
      from -= before;
      this.#forget(from, before);
      size += before;
    }
    this.#remember(from, size);
  }

  /** At the top, on from a free run that ends there. */
  #extend(size: number): number {
    const tail = this.#freeByEnd.get(this.#top) ?? 0;
    const start = this.#top - tail;
    const end = start + size + TAIL_BYTES;
    if (end > this.#memory.byteLength) {
      const roomy = this.#memory.byteLength + Math.max(MIN_GROWTH_BYTES, start >> 3);
      const isGrown =
        (roomy > end && roomy <= this.#memory.maxBytes && this.#memory.growTo(roomy)) ||
        this.#memory.growTo(end);
      if (!isGrown) {
        return 0;
      }
    }
    if (tail > 0) {
      this.#forget(start, tail);
    }
    this.#top = start + size;
    this.#used.set(start, size);
    return start;
  }

  /** The smallest free run that fits, cut to `size`; 0 where none does. */
  #takeFree(size: number): number {
    for (let i = lowerBound(this.#sizes, size); i < this.#sizes.length; ) {
      const found = this.#sizes[i]!;
      const starts = this.#startsBySize.get(found)!;
      while (starts.length > 0) {
        const start = starts.pop()!;
        if (this.#freeByStart.get(start) !== found) {
          continue;
        }
        this.#forget(start, found);
        if (found > size) {
          this.#remember(start + size, found - size);
        }
        return start;
      }
      this.#startsBySize.delete(found);
      this.#sizes.splice(i, 1);
    }
    return 0;
  }

  #remember(start: number, size: number): void {
    this.#freeByStart.set(start, size);
    this.#freeByEnd.set(start + size, size);
    let starts = this.#startsBySize.get(size);
    if (starts === undefined) {
      starts = [];
      this.#startsBySize.set(size, starts);
      this.#sizes.splice(lowerBound(this.#sizes, size), 0, size);
    }
    starts.push(start);
  }

  #forget(start: number, size: number): void {
    this.#freeByStart.delete(start);
    this.#freeByEnd.delete(start + size);
  }
}

function roundUp(byteLength: number): number {
  return Math.max(1, Math.ceil(byteLength / ALIGNMENT)) * ALIGNMENT;
}

function lowerBound(sorted: readonly number[], value: number): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (sorted[middle]! < value) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}
