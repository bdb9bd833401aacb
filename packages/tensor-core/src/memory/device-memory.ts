// The memory of a device over one backend: its pool, its ledger, and the scratch of kernels, which
// both count.

import type { Backend, Scratch } from '../backend.js';
import type { BackendBuffer } from '../view.js';
import { HostBlocks } from './host-blocks.js';
import { Ledger } from './ledger.js';
import { Pool } from './pool.js';

export class DeviceMemory {
  readonly backend: Backend;
  readonly pool: Pool;
  readonly ledger = new Ledger();
  readonly scratch: Scratch;
  isDisposed = false;

  constructor(backend: Backend) {
    const { ledger } = this;
    const pool = new Pool(backend);
    pool.blocks = new HostBlocks(backend, pool);
    const bytes = new Map<BackendBuffer, number>();
    this.backend = backend;
    this.pool = pool;
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

  /** Gives all buffers back. Idempotent. */
  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this.isDisposed = true;
    this.pool.dispose();
    this.pool.blocks.dispose();
    this.ledger.clear();
  }
}
