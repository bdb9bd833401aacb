// Memory of a device that the host itself fills and reads, as collectives do, where the device
// computes in the host's memory. Bytes so reach a storage, or leave it, without any copy.

import type { Backend } from '../backend.js';
import type { BackendBuffer, View } from '../view.js';
import { Pool } from './pool.js';
import type { Storage } from './storage.js';

/** The bytes of a storage, lent to the host. */
export interface StorageLoan {
  /** Resolves when what was queued for the storage has run. It may be read until `close`. */
  readonly bytes: Promise<Uint8Array>;
  /** Called once. */
  close(): void;
}

/**
 * A buffer that belongs to the host until `storage.hold()` takes it over or `release` gives it
 * back. Queued commands may still use the memory: see `settle`.
 */
export class HostBlock {
  /** The memory. It may be neither read nor written before `settle` has resolved. */
  readonly bytes: Uint8Array;
  /** @internal */
  readonly buffer: BackendBuffer;
  readonly #backend: Backend;
  readonly #pool: Pool;
  /** Ends the loan to the host; undefined while a storage has the buffer. */
  #endLoan: (() => void) | undefined;

  /** @internal */
  constructor(backend: Backend, pool: Pool, byteLength: number) {
    this.#backend = backend;
    this.#pool = pool;
    this.buffer = pool.take(byteLength, 'block');
    this.bytes = backend.hostBytes!(this.buffer).subarray(0, byteLength);
    this.#endLoan = pool.lend(this.buffer);
  }

  /** Resolves when all commands that were queued so far and use the memory have run. */
  async settle(): Promise<void> {
    await this.#backend.settle!(this.buffer);
  }

  /**
   * Queues a copy of values to `byteOffset` of the memory, ahead of all commands that are queued
   * later. The host may use the rest of the memory meanwhile.
   */
  queueCopy(x: View, byteOffset: number): void {
    this.#backend.run('cast', { x, out: { ...x, buffer: this.buffer, byteOffset } });
  }

  /** Queues the addition of another block's f32 from `byteOffset` on, as queueCopy does a copy. */
  queueAdd(other: HostBlock, byteOffset: number): void {
    const size = this.bytes.byteLength / 4;
    const a = { buffer: other.buffer, byteOffset, dtype: 'f32', size } as const;
    const out = { ...a, buffer: this.buffer, byteOffset: 0 };
    const lanes = { shape: [size], aStrides: [1], bStrides: [1] };
    this.#backend.run('binary', { kind: 'add', a, b: out, out, ...lanes });
  }

  /** Hands it to a storage, or back to the host. @internal */
  setHeld(isHeld: boolean): void {
    this.#endLoan?.();
    this.#endLoan = isHeld ? undefined : this.#pool.lend(this.buffer);
  }

  /** Gives the memory back, which the caller does not touch afterwards. */
  release(): void {
    this.setHeld(true);
    if (!this.#pool.isDisposed) {
      this.#pool.give(this.buffer);
    }
  }
}

/** The blocks of a device, which its pool does not count. */
export class HostBlocks {
  readonly #backend: Backend;
  readonly #storages: Pool;
  /** A pool apart, as the number of blocks depends on when peers answer. */
  readonly #pool: Pool;
  readonly #held = new Map<BackendBuffer, HostBlock>();

  /** @param storages the device's pool */
  constructor(backend: Backend, storages: Pool) {
    this.#backend = backend;
    this.#storages = storages;
    this.#pool = new Pool(backend);
  }

  /**
   * Takes memory for the host to fill, which a storage of at most so many bytes can hold
   * afterwards. Undefined where the device does not compute in memory that the host shares, and
   * where its pool has a limit, which counts storages alone.
   */
  take(byteLength: number): HostBlock | undefined {
    const isShared = this.#backend.hostBytes !== undefined;
    return isShared && !Number.isFinite(this.#storages.limitBytes)
      ? new HostBlock(this.#backend, this.#pool, byteLength)
      : undefined;
  }

  /** Fills a storage as `storage.fill()` does, in a block where the device has some. */
  fill(storage: Storage): void {
    const block = storage.isFilled ? undefined : this.take(storage.byteLength);
    if (block === undefined) {
      storage.fill();
    } else {
      storage.hold(block);
    }
  }

  /** Notes what a storage holds, and returns what gives it back. @internal */
  hold(block: HostBlock): () => void {
    block.setHeld(true);
    this.#held.set(block.buffer, block);
    return () => {
      if (this.#held.delete(block.buffer)) {
        block.release();
      }
    };
  }

  /** Takes the block out of a storage, which is then empty; undefined where it holds none. */
  takeFrom(storage: Storage): HostBlock | undefined {
    const block = storage.isFilled ? this.#held.get(storage.view().buffer) : undefined;
    if (block !== undefined) {
      this.#held.delete(block.buffer);
      block.setHeld(false);
      storage.free();
    }
    return block;
  }

  /**
   * Lends a storage's bytes where they lie, for reading. Nobody may change them in place until the
   * loan is closed, as with a reader. Undefined where the device does not compute in memory that
   * the host shares.
   */
  lend(storage: Storage): StorageLoan | undefined {
    const backend = this.#backend;
    if (backend.hostBytes === undefined) {
      return undefined;
    }
    const { buffer } = storage.view();
    const settled = backend.settle!(buffer) ?? Promise.resolve();
    const reader = storage.openReader(settled);
    const endLoan = (this.#held.has(buffer) ? this.#pool : this.#storages).lend(buffer);
    const bytes = backend.hostBytes(buffer).subarray(0, storage.byteLength);
    const close = () => {
      reader.close();
      endLoan();
    };
    return { bytes: settled.then(() => bytes), close };
  }

  dispose(): void {
    this.#held.clear();
    this.#pool.dispose();
  }
}
