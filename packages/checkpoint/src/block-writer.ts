// Gathers the pieces of a file into blocks of whole pages, of which one is filled while the other
// is written. A directory can hand such blocks to the disk past the system's page cache: copying
// 1.4 GiB into that cache takes 0.8 to 4 s of a processor that steps would use, and going past it
// 0.1 s.

import type { PieceSink } from './piece-store.js';

/** The pages of memory and of files, at whose multiples disks take bytes as they are. */
const PAGE_BYTES = 4096;
const WASM_PAGE_BYTES = 2 ** 16;

/** Writes one file from its beginning to its end. */
export class BlockWriter {
  readonly #sink: PieceSink;
  readonly #most: number;
  /** The block that is being filled, and the one that is being written. */
  #blocks: readonly [Uint8Array, Uint8Array] | undefined;
  /** The bytes in the block that is being filled. */
  #filled = 0;
  /** The bytes that were handed to the sink. */
  #handed = 0;
  /** The write that is under way. */
  #writing: Promise<void> = Promise.resolve();

  /** @param options.most the most bytes that are appended at a time: multiples of a page */
  constructor(sink: PieceSink, { most }: { readonly most: number }) {
    this.#sink = sink;
    this.#most = most;
  }

  /** The bytes of the file so far. */
  get byteLength(): number {
    return this.#handed + this.#filled;
  }

  /**
   * The memory behind what was appended, until something is appended. Waits while both blocks are
   * in use.
   * @throws what the sink throws
   */
  async room(byteLength: number): Promise<Uint8Array> {
    if (this.#filled + byteLength > this.#most + PAGE_BYTES) {
      await this.#writePages();
    }
    return this.#block().subarray(this.#filled, this.#filled + byteLength);
  }

  /** Appends bytes that were made in the room for as many, or elsewhere. */
  append(bytes: Uint8Array): void {
    const block = this.#block();
    const isInPlace =
      bytes.buffer === block.buffer && bytes.byteOffset === block.byteOffset + this.#filled;
    if (!isInPlace) {
      block.set(bytes, this.#filled);
    }
    this.#filled += bytes.byteLength;
  }

  /** Writes what is left. @throws what the sink throws */
  async finish(): Promise<void> {
    if (this.#filled >= PAGE_BYTES) {
      await this.#writePages();
    }
    await this.#writing;
    if (this.#filled > 0) {
      this.#write(this.#filled);
      this.#filled = 0;
    }
    await this.#writing;
  }

  /** Resolves when the sink uses no memory of this any more, whether or not it failed. */
  async settled(): Promise<void> {
    await this.#writing.catch(() => undefined);
  }

  #block(): Uint8Array {
    this.#blocks ??= pagesOf(this.#most + PAGE_BYTES);
    return this.#blocks[0];
  }

  /** Begins to write whole pages; less than one moves to the start of the other block. */
  async #writePages(): Promise<void> {
    await this.#writing;
    const [full, next] = this.#blocks!;
    const whole = this.#filled - (this.#filled % PAGE_BYTES);
    next.set(full.subarray(whole, this.#filled));
    this.#write(whole);
    this.#blocks = [next, full];
    this.#filled -= whole;
  }

  #write(byteLength: number): void {
    this.#writing = this.#sink.write(this.#block().subarray(0, byteLength), this.#handed);
    this.#writing.catch(() => undefined); // whoever awaits it next sees the error
    this.#handed += byteLength;
  }
}

/**
 * Two blocks that begin at pages of memory. Of all that JavaScript can allocate, that is certain
 * only for the memory of WebAssembly. It reserves addresses, which a process may be short of: then
 * other memory does, of which files are written through the page cache.
 */
function pagesOf(byteLength: number): readonly [Uint8Array, Uint8Array] {
  const initial = Math.ceil((2 * byteLength) / WASM_PAGE_BYTES);
  let memory: ArrayBuffer;
  try {
    memory = new WebAssembly.Memory({ initial, maximum: initial }).buffer as ArrayBuffer;
  } catch {
    memory = new ArrayBuffer(2 * byteLength);
  }
  return [new Uint8Array(memory, 0, byteLength), new Uint8Array(memory, byteLength, byteLength)];
}
