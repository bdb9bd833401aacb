// One value in a store. A value that the store could not take is kept in host memory, so that a
// full disk loses nothing.

import type { ByteStore, PinnedBytes } from './byte-store.js';

export class StoredBytes {
  readonly #store: ByteStore;
  readonly #key: string;
  readonly byteLength: number;
  /** A value that is newer than the store's, after a write that failed. */
  #unsaved: Uint8Array | undefined;
  /**
   * Whether there is a value: one that was written since, or one that was taken over from an
   * earlier process.
   */
  #exists: boolean;
  /** Ranges that read as zeros until the next write, whatever the store has there. */
  #zeroed: { readonly from: number; readonly to: number }[] = [];
  /**
   * The last operation that changes the value. Reads wait for it and see what it wrote, even if the
   * store failed to take it.
   */
  #lastWrite: Promise<unknown> = Promise.resolve();

  /** @param options.resume takes over the value that the store has, if its length fits */
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

  /** Whether there is a value, in the store or still waiting to get there. */
  get exists(): boolean {
    return this.#exists;
  }

  /** Whether host memory holds a value that the store has not taken. */
  get isUnsaved(): boolean {
    return this.#unsaved !== undefined;
  }

  /** Fills `into` with the value's bytes from `offset` on. */
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

  /**
   * Pins the value as it is now. The result is undefined where the store cannot pin, or has not
   * taken the value. A value with parts that `zero` has cleared is a gradient, which nobody pins.
   */
  async pin(): Promise<PinnedBytes | undefined> {
    await this.#lastWrite;
    return this.#unsaved === undefined ? this.#store.pin?.(this.#key) : undefined;
  }

  /**
   * Makes bytes `from` to `to` read as zeros, after the writes before this call and until the next
   * one.
   */
  zero(from: number, to: number): void {
    this.#lastWrite = this.#lastWrite.then(() => void this.#zeroed.push({ from, to }));
  }

  /**
   * Writes a new value. The array is the caller's again when the promise settles, unless it was
   * given away by `isGiven`. If the store fails, the promise rejects, and the array (or a copy, if
   * it was not given) waits here until it can be written.
   */
  write(bytes: Uint8Array, options: { readonly isGiven?: boolean } = {}): Promise<void> {
    const written = this.#lastWrite.then(() => this.#write(bytes, options));
    this.#lastWrite = written.catch(() => undefined);
    return written;
  }

  /**
   * Drops a value that waits after a failed write, so that the one before it counts again. It takes
   * effect after the operations before it.
   */
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

  /** Removes the value, in the store too. */
  remove(): Promise<void> {
    const removed = this.#lastWrite.then(async () => {
      this.#unsaved = undefined;
      this.#exists = false;
      await this.#store.delete(this.#key);
    });
    this.#lastWrite = removed.catch(() => undefined);
    return removed;
  }

  /** Writes a value that waits after a failed write. */
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
