// One value in a store, and what the store could not take: a full disk loses nothing.

import type { ByteStore, PinnedBytes } from './byte-store.js';

export class StoredBytes {
  readonly #store: ByteStore;
  readonly #key: string;
  readonly byteLength: number;
  /** Newer than what the store has, after a write that failed. */
  #unsaved: Uint8Array | undefined;
  /** Whether there is a value: written in this life, or taken over. */
  #exists: boolean;
  /** Ranges that are zeros until the next write, whatever the store has there. */
  #zeroed: { readonly from: number; readonly to: number }[] = [];
  /** Reads see the write before them, also one that fails. */
  #lastWrite: Promise<unknown> = Promise.resolve();

  /** @param options.resume take over the value that the store has */
  constructor(
    store: ByteStore,
    key: string,
    options: { readonly byteLength: number; readonly resume: boolean },
  ) {
    this.#store = store;
    this.#key = key;
    this.byteLength = options.byteLength;
    this.#exists = options.resume && store.byteLength(key) === options.byteLength;
  }

  /** Whether there is a value, in the store or waiting for it. */
  get exists(): boolean {
    return this.#exists;
  }

  /** Whether host memory holds a value that the store has not taken. */
  get isUnsaved(): boolean {
    return this.#unsaved !== undefined;
  }

  /** Fills `into` from byte `offset` on. */
  async read(into: Uint8Array, offset = 0): Promise<void> {
    await this.#lastWrite;
    const unsaved = this.#unsaved;
    if (unsaved === undefined) {
      await this.#store.read(this.#key, into, { offset });
    } else {
      into.set(unsaved.subarray(offset, offset + into.byteLength));
    }
    for (const { from, to } of this.#zeroed) {
      into.fill(0, Math.max(0, from - offset), Math.max(0, to - offset));
    }
  }

  /** Keeps the value as it is now; undefined where the store can't, or has not taken it. */
  async pin(): Promise<PinnedBytes | undefined> {
    await this.#lastWrite;
    const isStored = this.#unsaved === undefined && this.#zeroed.length === 0;
    return isStored ? this.#store.pin?.(this.#key) : undefined;
  }

  /**
   * Has reads find zeros from byte `from` to byte `to`, after the writes before and until the next
   * one.
   */
  zero(from: number, to: number): void {
    this.#lastWrite = this.#lastWrite.then(() => void this.#zeroed.push({ from, to }));
  }

  /**
   * The array is the caller's again when it settles, if it is not given away; where it rejects, it
   * or a copy waits here.
   */
  write(bytes: Uint8Array, options: { readonly isGiven?: boolean } = {}): Promise<void> {
    const written = this.#lastWrite.then(() => this.#write(bytes, options));
    this.#lastWrite = written.catch(() => undefined);
    return written;
  }

  /** Gives up on what waits, when the writes before have settled: the value before it counts. */
  withdraw(): Promise<void> {
    const withdrawn = this.#lastWrite.then(async () => {
      if (this.#unsaved === undefined) {
        return;
      }
      this.#unsaved = undefined;
      await this.#store.withdraw(this.#key);
    });
    this.#lastWrite = withdrawn.catch(() => undefined);
    return withdrawn;
  }

  /** Forgets the value, in the store too. */
  remove(): Promise<void> {
    const removed = this.#lastWrite.then(async () => {
      this.#unsaved = undefined;
      this.#exists = false;
      await this.#store.delete(this.#key);
    });
    this.#lastWrite = removed.catch(() => undefined);
    return removed;
  }

  /** Writes what waits. */
  async flush(): Promise<void> {
    await this.#lastWrite;
    if (this.#unsaved !== undefined) {
      await this.write(this.#unsaved);
    }
  }

  async #write(bytes: Uint8Array, options: { readonly isGiven?: boolean }): Promise<void> {
    this.#exists = true;
    this.#zeroed = [];
    try {
      await this.#store.write(this.#key, bytes, options);
      this.#unsaved = undefined;
    } catch (error) {
      this.#unsaved = options.isGiven === true ? bytes : bytes.slice();
      throw error;
    }
  }
}
