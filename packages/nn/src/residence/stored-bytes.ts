// One value in a store, and what the store could not take: a full disk loses nothing.

import type { ByteStore } from './byte-store.js';

export class StoredBytes {
  readonly #store: ByteStore;
  readonly #key: string;
  readonly byteLength: number;
  /** Newer than what the store has, after a write that failed. */
  #unsaved: Uint8Array | undefined;
  /** Reads see the write before them, also one that fails. */
  #lastWrite: Promise<unknown> = Promise.resolve();

  constructor(store: ByteStore, key: string, byteLength: number) {
    this.#store = store;
    this.#key = key;
    this.byteLength = byteLength;
  }

  /** Whether there is a value, in the store or waiting for it. */
  get exists(): boolean {
    return this.#unsaved !== undefined || this.#store.byteLength(this.#key) === this.byteLength;
  }

  /** Whether host memory holds a value that the store has not taken. */
  get isUnsaved(): boolean {
    return this.#unsaved !== undefined;
  }

  /** Fills `into` from byte `offset` on. */
  async read(into: Uint8Array, offset = 0): Promise<void> {
    await this.#lastWrite;
    const unsaved = this.#unsaved;
    if (unsaved === undefined) return this.#store.read(this.#key, into, { offset });
    into.set(unsaved.subarray(offset, offset + into.byteLength));
  }

  /** The array is the caller's again when it settles; where it rejects, a copy waits here. */
  write(bytes: Uint8Array): Promise<void> {
    const written = this.#lastWrite.then(() => this.#write(bytes));
    this.#lastWrite = written.catch(() => undefined);
    return written;
  }

  /** Writes what waits. */
  async flush(): Promise<void> {
    await this.#lastWrite;
    if (this.#unsaved !== undefined) await this.write(this.#unsaved);
  }

  async #write(bytes: Uint8Array): Promise<void> {
    try {
      await this.#store.write(this.#key, bytes);
      this.#unsaved = undefined;
    } catch (error) {
      this.#unsaved = bytes.slice();
      throw error;
    }
  }
}
