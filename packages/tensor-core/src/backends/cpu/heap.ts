// The allocator inside the linear memory takes the free run that fits best, and merges free runs
// with their neighbors. It knows nothing of the queue. Freed bytes may be handed out at once,
// because the commands that use them next are queued later.

import type { WasmMemory } from './wasm-memory.js';

/**
 * The alignment of blocks at both ends, so that no two share a cache line and flat parameters are
 * aligned.
 */
const ALIGNMENT = 256;
/** The bytes that stay free at the top, since kernels read whole vectors past the end of a view. */
const TAIL_BYTES = 4096;
/** The least that the memory grows by. It grows by an eighth where that is more. */
const MIN_GROWTH_BYTES = 4 * 1024 * 1024;

export class Heap {
  readonly #memory: WasmMemory;
  readonly #used = new Map<number, number>();
  readonly #freeByStart = new Map<number, number>();
  readonly #freeByEnd = new Map<number, number>();
  /** The starts of free runs by size. Those of runs that have merged are dropped when met. */
  readonly #startsBySize = new Map<number, number[]>();
  /** The keys of #startsBySize in ascending order. */
  readonly #sizes: number[] = [];
  /** The address from which on nothing has ever been handed out. */
  #top: number;

  constructor(memory: WasmMemory, base: number) {
    this.#memory = memory;
    this.#top = Math.ceil(base / ALIGNMENT) * ALIGNMENT;
  }

  /** Returns the address of a new block, or 0 where there is no room. */
  alloc(byteLength: number): number {
    const size = roundUp(byteLength);
    const start = this.#takeFree(size);
    if (start === 0) {
      return this.#extend(size);
    }
    this.#used.set(start, size);
    return start;
  }

  /** Whether there is room for a block without growing the memory. */
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

  /** Takes a block at the top, beginning with the free run that ends there, if any. */
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

  /** Takes the smallest free run that fits, cut to `size`, or returns 0 where none does. */
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
