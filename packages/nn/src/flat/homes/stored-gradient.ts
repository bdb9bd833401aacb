// The gradient of a flat that rests in a store. Additions run one after the other, and those that
// began before a clearing count no more.

import type { DType, Storage } from '@shardweave/tensor-core';
import type { FlatPlace } from '../flat-layout.js';
import type { HostBuffers } from './host-buffers.js';
import { addScaled } from './host-gradient.js';
import type { StoreUse } from './store-use.js';
import type { StoredBytes } from './stored-bytes.js';

export interface StoredGradientOptions {
  readonly use: StoreUse;
  /** For bytes on their way; reused. */
  hostBuffers(): HostBuffers;
}

export class StoredGradient {
  readonly #options: StoredGradientOptions;
  #stored: StoredBytes | undefined;
  #isThere = false;
  #version = 0;
  /** Who still needs the gradient, and whether it is to be cleared when they are done. */
  #numHolds = 0;
  #isClearDue = false;
  #duePlaces: FlatPlace[] = [];
  /** Gradients cleared; an addition that began before a clearing counts no more. */
  #numCleared = 0;
  /** Additions run one after the other. */
  #additions: Promise<void> = Promise.resolve();

  constructor(options: StoredGradientOptions) {
    this.#options = options;
  }

  /** Its place in the store, which is known when its flat has one. */
  open(stored: StoredBytes): void {
    this.#stored = stored;
  }

  /** Once it is open. */
  get stored(): StoredBytes {
    return this.#stored!;
  }

  /** Whether there is one, in the store or waiting for it. */
  get isThere(): boolean {
    return this.#isThere;
  }

  /** Changes with every addition and every clearing. */
  get version(): number {
    return this.#version;
  }

  /** Clearings wait until the returned function is called. */
  hold(): () => void {
    this.#numHolds += 1;
    let isHeld = true;
    return () => {
      if (!isHeld) {
        return;
      }
      isHeld = false;
      this.#numHolds -= 1;
      if (this.#numHolds === 0 && (this.#isClearDue || this.#duePlaces.length > 0)) {
        this.clear(this.#isClearDue ? undefined : this.#duePlaces.splice(0));
      }
    };
  }

  /** Forgets it; with `places` it is zeros there, and stays elsewhere. */
  clear(places?: readonly FlatPlace[]): void {
    if (this.#numHolds > 0) {
      this.#isClearDue ||= places === undefined;
      this.#duePlaces.push(...(places ?? []));
      return;
    }
    if (places !== undefined) {
      for (const { start, length } of places) {
        this.#stored?.zero(start * 4, (start + length) * 4);
      }
      this.#version += 1;
      return;
    }
    this.#isClearDue = false;
    this.#duePlaces = [];
    this.#isThere = false; // the next one is written over it
    this.#version += 1;
    this.#numCleared += 1;
    // One that the store refused would hold up every commit.
    const withdrawn = this.#additions.then(() => this.#stored?.withdraw());
    this.#additions = withdrawn.catch(() => undefined);
    this.#options.use.awaitBeforeCommit(this.#additions);
  }

  /** f32 bytes; undefined without a gradient. */
  async read(): Promise<Uint8Array | undefined> {
    await this.#additions;
    if (!this.#isThere) {
      return undefined;
    }
    const bytes = this.#options.use.room(this.#stored!.byteLength);
    await this.#stored!.read(bytes);
    return bytes;
  }

  /** gradient (+)= reduced * scale; `reduced` lies on the device and may be freed at once. */
  addStorage(reduced: Storage, scale: number): Promise<void> {
    const { byteLength, dtype } = reduced;
    const hostBuffers = this.#options.hostBuffers();
    const bytes = hostBuffers.take(byteLength);
    const read = reduced.read(0, byteLength, bytes);
    read.catch(() => undefined); // seen by the addition
    const added = this.#enqueue(async () => this.#add(await read, dtype, scale));
    const done = added.finally(() =>
      read.then(
        () => hostBuffers.give(bytes),
        () => hostBuffers.give(bytes),
      ),
    );
    done.catch(() => undefined); // seen by whoever waits for it
    return done;
  }

  /** The same of host bytes in `dtype`, which are the caller's again when it settles. */
  addBytes(reduced: Uint8Array, dtype: DType, scale: number): Promise<void> {
    return this.#enqueue(() => this.#add(reduced, dtype, scale));
  }

  async #add(reduced: Uint8Array, dtype: DType, scale: number): Promise<void> {
    const hostBuffers = this.#options.hostBuffers();
    const numCleared = this.#numCleared;
    const { byteLength } = this.#stored!;
    const total = hostBuffers.take(byteLength);
    try {
      const isFirst = !this.#isThere;
      if (!isFirst) {
        await this.#stored!.read(total);
      }
      const values = await this.#asF32(reduced, dtype);
      // Where the device makes no product, neither is one made here.
      const isPlain = scale === 1 && dtype === 'f32';
      if (this.#options.use.store.isDry !== true) {
        await addScaled(total, values, { scale: isPlain ? 'none' : scale, isFirst });
      }
      if (values !== reduced) {
        hostBuffers.give(values);
      }
      // Also where the store can't take it: it waits on the host.
      if (numCleared === this.#numCleared) {
        this.#isThere = true;
        this.#version += 1;
      }
      await this.#stored!.write(total);
    } finally {
      hostBuffers.give(total);
    }
  }

  async #asF32(bytes: Uint8Array, dtype: DType): Promise<Uint8Array> {
    if (dtype !== 'f16' && dtype !== 'bf16') {
      return bytes;
    }
    const wide = this.#options.hostBuffers().take(bytes.byteLength * 2);
    await (await this.#options.use.codec())?.decode(bytes, wide, { format: dtype });
    return wide;
  }

  /** Runs an addition behind the others, unless the gradient has been cleared by then. */
  #enqueue(work: () => Promise<void>): Promise<void> {
    const numCleared = this.#numCleared;
    const isWanted = () => numCleared === this.#numCleared;
    const done = this.#additions.then(() => (isWanted() ? work() : undefined));
    this.#additions = done.catch(() => undefined);
    return done;
  }
}
