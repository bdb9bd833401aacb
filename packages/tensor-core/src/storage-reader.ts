// Reads a storage in the background while later work is queued and runs, as a save does. Its bytes
// must not change meanwhile, so whoever changes them in place waits for the storage's readers
// first.

import type { Storage } from './storage.js';

/** Made by `storage.openReader()`; close it, for the storage's buffer stays until then. */
export class StorageReader {
  readonly #storage: Storage;
  readonly #onClose: () => void;
  readonly #settled: Promise<void>;
  readonly #closed: Promise<void>;
  #resolve = () => {};
  #isClosed = false;
  #waitsSinceMs: number | undefined;
  #waitMs = 0;

  constructor(
    storage: Storage,
    { settled, onClose }: { readonly settled: Promise<void>; readonly onClose: () => void },
  ) {
    storage.retain();
    this.#storage = storage;
    this.#onClose = onClose;
    this.#settled = settled;
    settled.catch(() => undefined); // each read tells of it
    this.#closed = new Promise((resolve) => {
      this.#resolve = resolve;
    });
  }

  /**
   * Bytes of the storage. Where the device computes in the host's memory, this waits for no later
   * work.
   */
  async read(byteOffset: number, byteLength: number, into?: Uint8Array): Promise<Uint8Array> {
    await this.#settled;
    return this.#storage.readSettled(byteOffset, byteLength, into);
  }

  /** Resolves when it is closed: for whoever wants to change the bytes. */
  whenClosed(): Promise<void> {
    if (!this.#isClosed) {
      this.#waitsSinceMs ??= performance.now();
    }
    return this.#closed;
  }

  /** Milliseconds for which somebody waited for it. */
  get waitMs(): number {
    return this.#waitMs;
  }

  /** Lets the bytes change. Idempotent. */
  close(): void {
    if (this.#isClosed) {
      return;
    }
    this.#isClosed = true;
    if (this.#waitsSinceMs !== undefined) {
      this.#waitMs = performance.now() - this.#waitsSinceMs;
    }
    this.#onClose();
    this.#storage.release();
    this.#resolve();
  }
}
