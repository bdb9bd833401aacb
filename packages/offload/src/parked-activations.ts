// Activations of one call of the model that wait on the host for its backward. They keep their
// identity: what autograd saved refers to the storage, which is filled again before it is used.

import type { Storage } from '@shardweave/tensor-core';

export class ParkedActivations {
  readonly #parked = new Map<Storage, Promise<Uint8Array>>();

  /** Queues the read-back and frees the device's copy at once; what is absent stays so. */
  park(storages: Iterable<Storage>): void {
    for (const storage of storages) {
      if (!storage.isFilled) continue;
      const bytes = storage.read();
      bytes.catch(() => undefined); // seen by unpark
      this.#parked.set(storage, bytes);
      storage.free();
    }
  }

  /** Brings back those that are parked; others are passed over. */
  async unpark(storages: Iterable<Storage>): Promise<void> {
    for (const storage of storages) {
      const parked = this.#parked.get(storage);
      if (parked === undefined) continue;
      const bytes = await parked;
      this.#parked.delete(storage);
      storage.fill();
      storage.write(bytes);
    }
  }
}
