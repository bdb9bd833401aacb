// Byte buffers for parts on their way: taken for a call, given back after it, so that repeated calls
// of the same sizes allocate nothing. One pool a rank, freed with it.

/** Sizes are rounded up to this, so that slightly different ones share buffers. */
const GRAIN_BYTES = 4096;

/** What the pool keeps at most; beyond, buffers are left to the garbage collector. */
const MAX_KEPT_BYTES = 512 * 2 ** 20;

export class ScratchPool {
  readonly #free = new Map<number, ArrayBuffer[]>();
  #keptBytes = 0;

  /** A buffer of `byteLength` bytes with whatever was in it before. */
  take(byteLength: number): Uint8Array {
    const size = Math.ceil(byteLength / GRAIN_BYTES) * GRAIN_BYTES;
    const buffer = this.#free.get(size)?.pop();
    if (buffer === undefined) {
      return new Uint8Array(new ArrayBuffer(size), 0, byteLength);
    }
    this.#keptBytes -= size;
    return new Uint8Array(buffer, 0, byteLength);
  }

  /** Takes back what `take` gave. The caller keeps no view of it. */
  give(bytes: Uint8Array): void {
    const buffer = bytes.buffer as ArrayBuffer;
    if (this.#keptBytes + buffer.byteLength > MAX_KEPT_BYTES) {
      return;
    }
    const list = this.#free.get(buffer.byteLength) ?? [];
    this.#free.set(buffer.byteLength, list);
    list.push(buffer);
    this.#keptBytes += buffer.byteLength;
  }

  clear(): void {
    this.#free.clear();
    this.#keptBytes = 0;
  }
}
