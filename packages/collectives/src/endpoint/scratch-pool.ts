// A pool of byte buffers for parts on their way. They are taken for a call and given back after it,
// so that repeated calls of the same sizes allocate nothing. Each rank has one pool, which is freed
// with it.

import { floorLog2, pow64 } from '@shardweave/dtypes/float64';

/**
 * Sizes are rounded up to a multiple of this, and to a quarter of a power of two, so that similar
 * sizes share buffers.
 */
const GRAIN_BYTES = 4096;

/**
 * The most that the pool keeps beside what is in use. Several operations in flight hold some tens
 * of MiB (Note [rounds] in algorithms/reduce-scatter.ts). Above this, the sizes go that were unused
 * for longest.
 */
const MAX_KEPT_BYTES = 256 * 2 ** 20;

export class ScratchPool {
  /** The free buffers by size. The size that was used last stands at the end. */
  readonly #free = new Map<number, ArrayBuffer[]>();
  #lastSize = 0;
  #keptBytes = 0;
  #takenBytes = 0;
  #peakBytes = 0;
  #numAllocations = 0;

  /** A buffer of at least `byteLength` bytes, cut to that length, with whatever it held before. */
  take(byteLength: number): Uint8Array {
    const size = roundUp(byteLength);
    const buffer = this.#free.get(size)?.pop();
    this.#takenBytes += size;
    this.#peakBytes = Math.max(this.#peakBytes, this.#takenBytes);
    if (buffer === undefined) {
      this.#numAllocations++;
      return new Uint8Array(new ArrayBuffer(size), 0, byteLength);
    }
    this.#keptBytes -= size;
    return new Uint8Array(buffer, 0, byteLength);
  }

  /** Takes back a buffer of `take`, of which the caller keeps no view. */
  give(bytes: Uint8Array): void {
    const buffer = bytes.buffer as ArrayBuffer;
    const size = buffer.byteLength;
    this.#takenBytes -= size;
    const list = this.#free.get(size) ?? [];
    if (size !== this.#lastSize || list.length === 0) {
      this.#free.delete(size);
      this.#free.set(size, list);
      this.#lastSize = size;
    }
    list.push(buffer);
    this.#keptBytes += size;
    if (this.#keptBytes > MAX_KEPT_BYTES) {
      this.#evict();
    }
  }

  clear(): void {
    this.#free.clear();
    this.#keptBytes = 0;
  }

  /** The number of buffers made so far, and the most bytes that were in use at one time. */
  stats(): { readonly numAllocations: number; readonly peakBytes: number } {
    return { numAllocations: this.#numAllocations, peakBytes: this.#peakBytes };
  }

  #evict(): void {
    for (const [size, list] of this.#free) {
      while (this.#keptBytes > MAX_KEPT_BYTES && list.pop() !== undefined) {
        this.#keptBytes -= size;
      }
      if (list.length === 0) {
        this.#free.delete(size);
      }
      if (this.#keptBytes <= MAX_KEPT_BYTES) {
        return;
      }
    }
  }
}

function roundUp(byteLength: number): number {
  const quarter = pow64(2, floorLog2(Math.max(1, byteLength))) / 4;
  const step = Math.max(GRAIN_BYTES, quarter);
  return Math.ceil(byteLength / step) * step;
}
