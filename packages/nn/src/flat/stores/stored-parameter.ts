// The values of a flat as bytes in a store. Gathers and loads start from them.

import { byteSize, type DType, type Tensor } from '@shardweave/tensor-core';
import type { PinnedBytes } from './byte-store.js';
import type { HostBuffers } from './host-buffers.js';
import type { StoreUse } from './store-use.js';
import type { StoredBytes } from './stored-bytes.js';

/** The values of one flat parameter in a store. */
export class StoredParameter {
  /** Whether it goes on from values of an earlier process. */
  readonly isResuming: boolean;
  readonly #flat: Tensor;
  readonly #use: StoreUse;
  readonly #hostBuffers: () => HostBuffers;
  #name = '';
  #stored: StoredBytes | undefined;
  /** The shard's bytes between beginFilling and endFilling. */
  #filling: Uint8Array | undefined;

  constructor(
    flat: Tensor,
    { use, resume }: { readonly use: StoreUse; readonly resume: boolean },
    hostBuffers: () => HostBuffers,
  ) {
    this.isResuming = resume;
    this.#flat = flat;
    this.#use = use;
    this.#hostBuffers = hostBuffers;
  }

  /** @internal Gives it its place in the store, when its flat has taken its own. */
  open(name: string, stored: StoredBytes): void {
    this.#name = name;
    this.#stored = stored;
  }

  /** @internal Its place in the store; there is none before `open`. */
  get stored(): StoredBytes {
    return this.#stored!;
  }

  /** Until endFilling, `write` writes to host memory only. */
  beginFilling(): void {
    this.#filling = this.#use.room(this.stored.byteLength);
  }

  /** The bytes of these elements in the shard that is being filled; the caller writes them. */
  filling(start: number, length: number): Uint8Array {
    const elementBytes = byteSize(this.#flat.dtype);
    return this.#filling!.subarray(start * elementBytes, (start + length) * elementBytes);
  }

  /** Writes what was filled to the store. */
  async endFilling(): Promise<void> {
    const filled = this.#filling;
    this.#filling = undefined;
    if (filled !== undefined) {
      await this.stored.write(filled, { isGiven: true });
    }
  }

  /** Reads bytes. The array belongs to the caller. */
  async read(byteOffset: number, byteLength: number): Promise<Uint8Array> {
    this.#use.requireWhole(this.#name);
    const bytes = this.#use.room(byteLength);
    await this.stored.read(bytes, byteOffset);
    return bytes;
  }

  /** Pins it as it is now; undefined where its store can't. */
  async pin(): Promise<PinnedBytes | undefined> {
    this.#use.requireWhole(this.#name);
    return this.stored.pin();
  }

  /** Replaces a part. The whole is written each time, so join parts before. */
  async write(bytes: Uint8Array, byteOffset: number): Promise<void> {
    if (this.#filling !== undefined) {
      this.#filling.set(bytes, byteOffset);
      return;
    }
    this.#use.requireWhole(this.#name);
    const { byteLength } = this.stored;
    if (bytes.byteLength === byteLength) {
      return this.stored.write(bytes);
    }
    const whole = await this.read(0, byteLength);
    whole.set(bytes, byteOffset);
    await this.stored.write(whole);
  }

  /** The shard in the dtype of computation, as a host buffer that the caller gives back. */
  async readForLoad(computeDType: DType): Promise<Uint8Array> {
    const flat = this.#flat;
    this.#use.requireWhole(this.#name);
    const hostBuffers = this.#hostBuffers();
    const master = hostBuffers.take(this.stored.byteLength);
    let isLent = true;
    try {
      await this.stored.read(master);
      if (computeDType === flat.dtype) {
        isLent = false;
        return master;
      }
      const coded = hostBuffers.take(flat.size * 2);
      try {
        const codec = await this.#use.codec();
        await codec?.encode(master, coded, { format: computeDType as 'f16' | 'bf16' });
      } catch (error) {
        hostBuffers.give(coded);
        throw error;
      }
      return coded;
    } finally {
      if (isLent) {
        hostBuffers.give(master);
      }
    }
  }

  /** Bytes of host buffers that readForLoad holds at most. */
  loadBytes(computeDType: DType): number {
    const { dtype, size, storage } = this.#flat;
    return storage.byteLength + (computeDType === dtype ? 0 : size * 2);
  }
}
