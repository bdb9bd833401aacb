// Temporary buffers of kernels that take several dispatches. The queue runs in order, so a buffer
// given back may be taken at once for later commands.

import type { Allocations } from './allocations.js';
import { WebGpuBuffer } from './gpu-buffer.js';

const MIN_BYTES = 256;

export class ScratchPool {
  readonly #allocations: Allocations;
  readonly #nextId: () => number;
  /** Of a buffer that unsubmitted commands may name. */
  readonly #destroy: (buffer: WebGpuBuffer) => void;
  readonly #free = new Map<number, WebGpuBuffer[]>();
  readonly #all = new Set<WebGpuBuffer>();

  constructor(
    allocations: Allocations,
    parts: { nextId: () => number; destroy: (buffer: WebGpuBuffer) => void },
  ) {
    this.#allocations = allocations;
    this.#nextId = parts.nextId;
    this.#destroy = parts.destroy;
  }

  get held(): { readonly bytes: number; readonly buffers: number } {
    return {
      bytes: [...this.#all].reduce((sum, b) => sum + b.byteLength, 0),
      buffers: this.#all.size,
    };
  }

  take(byteLength: number): WebGpuBuffer {
    const size = Math.max(MIN_BYTES, 2 ** Math.ceil(Math.log2(byteLength)));
    const list = this.#free.get(size);
    for (let known = list?.pop(); known !== undefined; known = list!.pop()) {
      if (!known.isLost) return known;
      this.#drop(known);
    }
    const gpu = this.#allocations.create({
      label: 'scratch',
      size,
      usage: 0x0080 | 0x0004 | 0x0008, // STORAGE | COPY_SRC | COPY_DST
    });
    const buffer = new WebGpuBuffer(this.#nextId(), gpu, (one) => this.#allocations.isLost(one));
    this.#all.add(buffer);
    return buffer;
  }

  give(buffer: WebGpuBuffer): void {
    const list = this.#free.get(buffer.byteLength);
    if (list === undefined) this.#free.set(buffer.byteLength, [buffer]);
    else list.push(buffer);
  }

  /** Destroys what is free. */
  trim(): void {
    for (const list of this.#free.values()) for (const buffer of list) this.#drop(buffer);
    this.#free.clear();
  }

  destroy(): void {
    for (const { gpu } of this.#all) gpu.destroy();
    this.#free.clear();
    this.#all.clear();
  }

  #drop(buffer: WebGpuBuffer): void {
    this.#all.delete(buffer);
    this.#destroy(buffer);
  }
}
