// A buffer of the CPU device: a block of the linear memory.

import type { BackendBuffer } from '../../view.js';

/** What one call of the backend queues, and when all of that has run. */
export interface QueuedCall {
  /** The commands that were committed up to its end; Infinity while it still queues some. */
  end: number;
}

/** A call that queued nothing. */
const NO_CALL: QueuedCall = { end: 0 };

export class CpuBuffer implements BackendBuffer {
  readonly id: number;
  readonly byteLength: number;
  readonly label: string;
  /** The block's address, which is 0 where the allocation failed and with it the device. */
  readonly address: number;
  isFreed = false;
  /** The last call that used the buffer or, before it, the block that it lies in. */
  lastCall = NO_CALL;

  constructor(id: number, byteLength: number, label: string, address: number) {
    this.id = id;
    this.byteLength = byteLength;
    this.label = label;
    this.address = address;
  }
}
