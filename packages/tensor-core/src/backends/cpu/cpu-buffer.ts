// A buffer of the CPU device: a block of the linear memory.

import type { BackendBuffer } from '../../view.js';

export class CpuBuffer implements BackendBuffer {
  readonly id: number;
  readonly byteLength: number;
  readonly label: string;
  /** The block's address, which is 0 where the allocation failed and with it the device. */
  readonly address: number;
  isFreed = false;

  constructor(id: number, byteLength: number, label: string, address: number) {
    this.id = id;
    this.byteLength = byteLength;
    this.label = label;
    this.address = address;
  }
}
