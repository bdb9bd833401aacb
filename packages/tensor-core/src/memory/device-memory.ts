// The memory of a device over one backend: its pool, its ledger, and the scratch of kernels, which
// both count.

import type { Backend, Scratch } from '../backend.js';
import type { BackendBuffer } from '../view.js';
import { HostBlock } from './host-block.js';
import { Ledger } from './ledger.js';
import { Pool } from './pool.js';

export class DeviceMemory {
  readonly backend: Backend;
  readonly pool: Pool;
  /** The buffers of blocks, whose number depends on when peers answer; undefined: see hostBlock. */
  readonly #blocks: Pool | undefined;
  readonly ledger = new Ledger();
  readonly scratch: Scratch;
  isDisposed = false;

  constructor(backend: Backend) {
    const { ledger } = this;
    const pool = new Pool(backend);
    const bytes = new Map<BackendBuffer, number>();
    this.backend = backend;
    this.pool = pool;
    this.#blocks = backend.hostBytes === undefined ? undefined : new Pool(backend);
    this.scratch = {
      take: (byteLength) => {
        const buffer = pool.take(byteLength, 'scratch');
        bytes.set(buffer, byteLength);
        ledger.add('activation', byteLength);
        return buffer;
      },
      give: (buffer) => {
        ledger.add('activation', -bytes.get(buffer)!);
        bytes.delete(buffer);
        pool.give(buffer);
      },
    };
  }

  /** See Device.hostBlock. */
  hostBlock(byteLength: number): HostBlock | undefined {
    // The limit counts the buffers of storages alone, so where there is one they hold no blocks.
    const hasLimit = Number.isFinite(this.pool.limitBytes);
    return this.#blocks === undefined || hasLimit
      ? undefined
      : new HostBlock(this.backend, this.#blocks, byteLength);
  }

  /** Gives all buffers back. Idempotent. */
  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this.isDisposed = true;
    this.pool.dispose();
    this.#blocks?.dispose();
    this.ledger.clear();
  }
}
