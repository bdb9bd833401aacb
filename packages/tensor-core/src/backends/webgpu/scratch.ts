// Temporary buffers of kernels that take several dispatches. The queue runs in order, so a buffer
// given back may be taken at once for later commands.

import { WebGpuBuffer } from './gpu-buffer.js';

const MIN_BYTES = 256;

export class ScratchPool {
  readonly #device: GPUDevice;
  readonly #nextId: () => number;
  readonly #free = new Map<number, WebGpuBuffer[]>();
  readonly #all: WebGpuBuffer[] = [];

  constructor(device: GPUDevice, nextId: () => number) {
    this.#device = device;
    this.#nextId = nextId;
  }

  get held(): { readonly bytes: number; readonly buffers: number } {
    return {
      bytes: this.#all.reduce((sum, b) => sum + b.byteLength, 0),
      buffers: this.#all.length,
    };
  }

  take(byteLength: number): WebGpuBuffer {
    const size = Math.max(MIN_BYTES, 2 ** Math.ceil(Math.log2(byteLength)));
    const known = this.#free.get(size)?.pop();
    if (known !== undefined) return known;
    const gpu = this.#device.createBuffer({
      label: 'scratch',
      size,
      usage: 0x0080 | 0x0004 | 0x0008, // STORAGE | COPY_SRC | COPY_DST
    });
    const buffer = new WebGpuBuffer(this.#nextId(), gpu);
    this.#all.push(buffer);
    return buffer;
  }

  give(buffer: WebGpuBuffer): void {
    const list = this.#free.get(buffer.byteLength);
    if (list === undefined) this.#free.set(buffer.byteLength, [buffer]);
    else list.push(buffer);
  }

  destroy(): void {
    for (const { gpu } of this.#all) gpu.destroy();
    this.#free.clear();
    this.#all.length = 0;
  }
}
