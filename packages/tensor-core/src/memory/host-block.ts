// Memory of a device that the host itself fills and reads, as collectives do, where the device
// computes in the host's memory. Bytes so reach a storage, or leave it, without any copy.

import type { Backend } from '../backend.js';
import type { BackendBuffer } from '../view.js';
import type { Pool } from './pool.js';

/**
 * A buffer that belongs to the host, made by `device.hostBlock()`, until `storage.hold()` takes it
 * over or `release` gives it back. Queued commands may still use the memory: see `settle`.
 */
export class HostBlock {
  /** The memory. It may be neither read nor written before `settle` has resolved. */
  readonly bytes: Uint8Array;
  /** @internal */
  readonly buffer: BackendBuffer;
  readonly #backend: Backend;
  readonly #pool: Pool;
  /** Ends the loan; undefined while a storage has the buffer, and once it was released. */
  #endLoan: (() => void) | undefined;

  /** @internal */
  constructor(backend: Backend, pool: Pool, byteLength: number) {
    this.#backend = backend;
    this.#pool = pool;
    this.buffer = pool.take(byteLength, 'block');
    this.bytes = backend.hostBytes!(this.buffer).subarray(0, byteLength);
    this.#endLoan = this.lend();
  }

  /** Resolves when all commands that were queued so far and use the memory have run. */
  async settle(): Promise<void> {
    await this.#backend.settle!(this.buffer);
  }

  /** Lends the buffer of a storage: see Pool.lend. @internal */
  lend(): () => void {
    return this.#pool.lend(this.buffer);
  }

  /** Notes that a storage has the buffer now, or has it no longer. @internal */
  setHeld(isHeld: boolean): void {
    this.#endLoan?.();
    this.#endLoan = isHeld ? undefined : this.lend();
  }

  /** Gives the memory back, which the caller does not touch afterwards. */
  release(): void {
    this.#endLoan?.();
    this.#endLoan = undefined;
    if (!this.#pool.isDisposed) {
      this.#pool.give(this.buffer);
    }
  }
}
