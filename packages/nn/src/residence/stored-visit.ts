// One stay of a flat parameter on its device: bytes come from the store into host buffers, from
// there into storages, and back.

import type { Device, Storage } from '@shardweave/tensor-core';
import type { FlatVisit } from './flat-home.js';
import type { HostBuffers } from './host-buffers.js';
import type { StoredBytes } from './stored-bytes.js';

/** A storage for what one stored value holds. */
export interface VisitPart {
  readonly stored: StoredBytes;
  readonly storage: Storage;
  /** Whether the visit may change it. */
  readonly isChanging: boolean;
}

export interface VisitOptions {
  readonly device: Device;
  readonly hostBuffers: HostBuffers;
  readonly parts: readonly VisitPart[];
  /** The storages are filled. */
  onLoaded(): void;
  /** They are about to be freed. */
  onLeaving(): void;
  /** Written beside the changed parts. */
  alsoStore(): Promise<void>;
}

export class StoredVisit implements FlatVisit {
  readonly #options: VisitOptions;
  /** Host bytes of each part; undefined where nothing is stored, which means zeros. */
  readonly #reads: Promise<(Uint8Array | undefined)[]>;
  #isLoaded = false;

  constructor(options: VisitOptions) {
    this.#options = options;
    this.#reads = this.#readAll();
    this.#reads.catch(() => undefined); // seen by load, if it comes to that
  }

  async load(): Promise<void> {
    const { device, hostBuffers, parts, onLoaded } = this.#options;
    const bytes = await this.#reads;
    for (const [index, { storage }] of parts.entries()) {
      storage.fill();
      const read = bytes[index];
      if (read === undefined) {
        device.backend.run('fill', { out: storage.view(), value: 0 });
      } else {
        storage.write(read);
        hostBuffers.give(read);
      }
    }
    this.#isLoaded = true;
    onLoaded();
  }

  async store(): Promise<void> {
    const { hostBuffers, parts, alsoStore } = this.#options;
    const reads = parts
      .filter(({ isChanging }) => isChanging)
      .map(({ stored, storage }) => {
        const bytes = hostBuffers.take(stored.byteLength);
        return { stored, bytes, read: storage.read(0, stored.byteLength, bytes) };
      });
    this.#free(); // the reads are queued before whoever gets the buffers next
    const writes = reads.map(async ({ stored, read, bytes }) => {
      try {
        await read;
        await stored.write(bytes);
      } finally {
        hostBuffers.give(bytes);
      }
    });
    const outcomes = await Promise.allSettled([...writes, alsoStore()]);
    const failed = outcomes.find((outcome) => outcome.status === 'rejected');
    if (failed !== undefined) {
      throw failed.reason;
    }
  }

  drop(): void {
    if (this.#isLoaded) {
      this.#free();
      return;
    }
    const { hostBuffers } = this.#options;
    void this.#reads.then(
      (all) => {
        for (const bytes of all) {
          if (bytes !== undefined) {
            hostBuffers.give(bytes);
          }
        }
      },
      () => undefined,
    );
  }

  /** Where one read fails all buffers are given back, when the last of them has settled. */
  async #readAll(): Promise<(Uint8Array | undefined)[]> {
    const { hostBuffers, parts } = this.#options;
    const taken = parts.map(({ stored }) =>
      stored.exists ? hostBuffers.take(stored.byteLength) : undefined,
    );
    const reads = await Promise.allSettled(
      taken.map((bytes, i) => bytes && parts[i]!.stored.read(bytes)),
    );
    const failed = reads.find((read) => read.status === 'rejected');
    if (failed === undefined) {
      return taken;
    }
    for (const bytes of taken) {
      if (bytes !== undefined) {
        hostBuffers.give(bytes);
      }
    }
    throw failed.reason;
  }

  #free(): void {
    this.#options.onLeaving();
    for (const { storage } of this.#options.parts) {
      storage.free();
    }
    this.#isLoaded = false;
  }
}
