// The gradient of a flat that rests in a store. Additions run one after the other. A clearing also
// cancels the additions that began before it.

import type { DType, Storage } from '@shardweave/tensor-core';
import type { FlatPlace } from '../layout/flat-layout.js';
import type { HostBuffers } from './host-buffers.js';
import { addScaled } from './host-gradient.js';
import type { StoreUse } from './store-use.js';
import type { StoredBytes } from './stored-bytes.js';

/** The gradient of one flat parameter in a store. */
export class StoredGradient {
  readonly #use: StoreUse;
  readonly #hostBuffers: () => HostBuffers;
  #stored: StoredBytes | undefined;
  #isThere = false;
  #version = 0;
  /** How many holds there are, and what is to be cleared when the last one ends. */
  #numHolds = 0;
  #isClearDue = false;
  #duePlaces: FlatPlace[] = [];
  /** How often it was cleared. An addition notes the number to see that it was cancelled. */
  #numCleared = 0;
  /** Settles when all additions so far have run; the next one waits for it. */
  #additions: Promise<void> = Promise.resolve();

  constructor(use: StoreUse, hostBuffers: () => HostBuffers) {
    this.#use = use;
    this.#hostBuffers = hostBuffers;
  }

  /** @internal Gives it its place in the store, when its flat has taken its own. */
  open(stored: StoredBytes): void {
    this.#stored = stored;
  }

  /** @internal Its place in the store; there is none before `open`. */
  get stored(): StoredBytes {
    return this.#stored!;
  }

  /** Whether there is a gradient, in the store or on the host because the store refused it. */
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

  /** Forgets the gradient. With `places`, it becomes zeros there and stays elsewhere. */
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
    this.#isThere = false; // the next gradient overwrites its bytes
    this.#version += 1;
    this.#numCleared += 1;
    // Without this, a gradient that the store refused would make every later commit reject.
    const withdrawn = this.#additions.then(() => this.#stored?.withdraw());
    this.#additions = withdrawn.catch(() => undefined);
    this.#use.awaitBeforeCommit(this.#additions);
  }

  /** The gradient's f32 bytes after all additions so far; undefined where there is none. */
  async read(): Promise<Uint8Array | undefined> {
    await this.#additions;
    if (!this.#isThere) {
      return undefined;
    }
    const bytes = this.#use.room(this.#stored!.byteLength);
    await this.#stored!.read(bytes);
    return bytes;
  }

  /**
   * Adds reduced * scale, or begins a gradient with it where there is none. `reduced` is on the
   * device, and the caller may free it right after the call.
   */
  addStorage(reduced: Storage, scale: number): Promise<void> {
    const { byteLength, dtype } = reduced;
    const hostBuffers = this.#hostBuffers();
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

  /** Does the same with host bytes in `dtype`. The caller must not touch them until it settles. */
  addBytes(reduced: Uint8Array, dtype: DType, scale: number): Promise<void> {
    return this.#enqueue(() => this.#add(reduced, dtype, scale));
  }

  async #add(reduced: Uint8Array, dtype: DType, scale: number): Promise<void> {
    const hostBuffers = this.#hostBuffers();
    const numCleared = this.#numCleared;
    const { byteLength } = this.#stored!;
    const total = hostBuffers.take(byteLength);
    try {
      const isFirst = !this.#isThere;
      if (!isFirst) {
        await this.#stored!.read(total);
      }
      const values = await this.#asF32(reduced, dtype);
      // The device multiplies nothing for an f32 gradient with scale 1, so neither does this.
      const isPlain = scale === 1 && dtype === 'f32';
      if (this.#use.store.isDry !== true) {
        await addScaled(total, values, { scale: isPlain ? 'none' : scale, isFirst });
      }
      if (values !== reduced) {
        hostBuffers.give(values);
      }
      // The gradient counts even if the store refuses it below: it then waits on the host.
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
    const wide = this.#hostBuffers().take(bytes.byteLength * 2);
    await (await this.#use.codec())?.decode(bytes, wide, { format: dtype });
    return wide;
  }

  /** Runs an addition after those before it, unless the gradient was cleared meanwhile. */
  #enqueue(work: () => Promise<void>): Promise<void> {
    const numCleared = this.#numCleared;
    const isWanted = () => numCleared === this.#numCleared;
    const done = this.#additions.then(() => (isWanted() ? work() : undefined));
    this.#additions = done.catch(() => undefined);
    return done;
  }
}
