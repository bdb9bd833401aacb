// Activations of one call of the model that wait on the host for its backward. They keep their
// identity: what autograd saved refers to the storage, which is filled again before it is used.

import type { HostBuffers } from '@shardweave/nn';
import type { Storage } from '@shardweave/tensor-core';

export class ParkedActivations {
  readonly #hostBuffers: HostBuffers;
  readonly #isDry: boolean;
  /** Bytes on the host; none in a dry run. */
  readonly #parked = new Map<Storage, Promise<Uint8Array | undefined>>();

  constructor(hostBuffers: HostBuffers, options: { readonly isDry: boolean }) {
    this.#hostBuffers = hostBuffers;
    this.#isDry = options.isDry;
  }

  /** Queues the read-back and frees the device's copy at once; what is absent stays so. */
  park(storages: Iterable<Storage>): void {
    for (const storage of storages) {
      if (!storage.isFilled) continue;
      this.#parked.set(storage, this.#isDry ? Promise.resolve(undefined) : this.#read(storage));
      storage.free();
    }
  }

  #read(storage: Storage): Promise<Uint8Array> {
    const { byteLength } = storage;
    const bytes = storage.read(0, byteLength, this.#hostBuffers.take(byteLength));
    bytes.catch(() => undefined); // seen by unpark
    return bytes;
  }

  /** Brings back those that are parked; others are passed over. */
  async unpark(storages: Iterable<Storage>): Promise<void> {
    for (const storage of storages) {
      const parked = this.#parked.get(storage);
      if (parked === undefined) continue;
      const bytes = await parked;
      storage.fill();
      this.#parked.delete(storage);
      if (bytes === undefined) continue;
      storage.write(bytes);
      this.#hostBuffers.give(bytes);
    }
  }
}
