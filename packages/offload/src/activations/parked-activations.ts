// Activations of one call of the model that wait on the host for its backward. They keep their
// identity: what autograd saved refers to the storage, which is filled again before it is used.

import type { HostBuffers } from '@shardweave/nn/flat';
import type { Storage } from '@shardweave/tensor-core';

interface Parked {
  /** Undefined in a dry run, which keeps nothing. */
  readonly bytes: Uint8Array | undefined;
  readonly read: Promise<unknown>;
  hasArrived: boolean;
}

export class ParkedActivations {
  readonly #hostBuffers: HostBuffers;
  readonly #isDry: boolean;
  readonly #parked = new Map<Storage, Parked>();

  constructor(hostBuffers: HostBuffers, options: { readonly isDry: boolean }) {
    this.#hostBuffers = hostBuffers;
    this.#isDry = options.isDry;
  }

  get isEmpty(): boolean {
    return this.#parked.size === 0;
  }

  /**
   * Queues the read-back and frees the device's copy at once; a storage without contents is passed
   * over.
   */
  park(storages: Iterable<Storage>): void {
    for (const storage of storages) {
      if (!storage.isFilled) {
        continue;
      }
      this.#parked.set(storage, this.#read(storage));
      storage.free();
    }
  }

  #read(storage: Storage): Parked {
    if (this.#isDry) {
      return { bytes: undefined, read: Promise.resolve(), hasArrived: true };
    }
    const { byteLength } = storage;
    const bytes = this.#hostBuffers.take(byteLength);
    const read = storage.read(0, byteLength, bytes);
    const parked = { bytes, read, hasArrived: false };
    const arrive = () => {
      parked.hasArrived = true;
    };
    read.then(arrive, arrive); // a failure is seen by unpark
    return parked;
  }

  /** Brings back the storages that are parked; others are passed over. */
  async unpark(storages: Iterable<Storage>): Promise<void> {
    for (const storage of storages) {
      const parked = this.#parked.get(storage);
      if (parked === undefined) {
        continue;
      }
      await parked.read;
      storage.fill();
      this.#parked.delete(storage);
      if (parked.bytes === undefined) {
        continue;
      }
      const { bytes } = parked;
      storage.refill(() => storage.write(bytes));
      this.#hostBuffers.give(bytes);
    }
  }

  /**
   * Lets go of what nobody will ask for, because the graph was freed without a backward through it.
   */
  forgetFreed(): void {
    for (const [storage, { bytes, read, hasArrived }] of this.#parked) {
      if (storage.holds > 0) {
        continue;
      }
      this.#parked.delete(storage);
      if (bytes === undefined) {
        continue;
      }
      const give = () => this.#hostBuffers.give(bytes);
      if (hasArrived) {
        give();
      } else {
        void read.then(give, give);
      }
    }
  }
}
