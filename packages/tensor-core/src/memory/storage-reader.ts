// Reads a storage in the background while later work is queued and runs, as a save does. Its bytes
// must not change meanwhile, so whoever changes them in place waits for the storage's readers
// first.

import type { Storage } from './storage.js';

/** A reader of one storage, made by `storage.openReader()`. The buffer stays until it is closed. */
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
   * Reads bytes of the storage. Where the device computes in the host's memory, the read does not
   * wait for work that was queued later.
   */
  async read(byteOffset: number, byteLength: number, into?: Uint8Array): Promise<Uint8Array> {
    await this.#settled;
    const { buffer } = this.#storage.view();
    const { backend } = this.#storage.device;
    if (backend.readNow === undefined) {
      return backend.read(buffer, byteOffset, byteLength, into);
    }
    const bytes = into ?? new Uint8Array(byteLength);
    backend.readNow(buffer, byteOffset, bytes);
    return bytes;
  }

  /** Resolves when the reader is closed, which code that changes the bytes has to await. */
  whenClosed(): Promise<void> {
    if (!this.#isClosed) {
      this.#waitsSinceMs ??= performance.now();
    }
    return this.#closed;
  }

  /** The milliseconds for which other code waited for the reader to be closed. */
  get waitMs(): number {
    return this.#waitMs;
  }

  /** Closes the reader, so that the bytes may change. Later calls do nothing. */
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
