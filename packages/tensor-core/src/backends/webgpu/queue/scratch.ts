// Temporary buffers of kernels that nobody else provides scratch for, and tables that stay. The
// queue runs in order, so a buffer given back may be taken at once for later commands.

import type { Scratch } from '../../../backend.js';
import { LimitError } from '../../../errors.js';
import { sizeClass } from '../../../memory/pool.js';
import type { BackendBuffer } from '../../../view.js';
import type { Allocations } from './allocations.js';
import { asOwnBuffer, type WebGpuBuffer } from './gpu-buffer.js';

export class ScratchPool implements Scratch {
  readonly #allocations: Allocations;
  /** The bytes of the largest buffer that the device makes. */
  readonly maxBytes: number;
  /** Destroys a buffer once no unsubmitted command can name it. */
  readonly #destroy: (buffer: WebGpuBuffer) => void;
  readonly #free = new Map<number, WebGpuBuffer[]>();
  readonly #all = new Set<WebGpuBuffer>();

  constructor(
    allocations: Allocations,
    parts: { maxBytes: number; destroy: (buffer: WebGpuBuffer) => void },
  ) {
    this.#allocations = allocations;
    this.maxBytes = parts.maxBytes;
    this.#destroy = parts.destroy;
  }

  get held(): { readonly bytes: number; readonly buffers: number } {
    return {
      bytes: [...this.#all].reduce((sum, b) => sum + b.byteLength, 0),
      buffers: this.#all.size,
    };
  }

  take(byteLength: number): WebGpuBuffer {
    const { maxBytes } = this;
    if (byteLength > maxBytes) {
      throw new LimitError(
        `scratch: expected at most ${maxBytes} bytes, got ${byteLength}. The device makes no larger buffer.`,
        { requestedBytes: byteLength, limitBytes: maxBytes },
      );
    }
    const size = Math.min(sizeClass(byteLength), maxBytes);
    const known = this.#free.get(size)?.pop();
    if (known !== undefined) {
      return known;
    }
    const buffer = this.#allocations.createStorage(size, 'scratch');
    this.#all.add(buffer);
    return buffer;
  }

  give(given: BackendBuffer): void {
    const buffer = asOwnBuffer(given);
    if (buffer.isLost) {
      this.#drop(buffer);
      return;
    }
    const list = this.#free.get(buffer.byteLength);
    if (list === undefined) {
      this.#free.set(buffer.byteLength, [buffer]);
    } else {
      list.push(buffer);
    }
  }

  /** Destroys the buffers that are free. */
  trim(): void {
    for (const list of this.#free.values()) {
      for (const buffer of list) {
        this.#drop(buffer);
      }
    }
    this.#free.clear();
  }

  destroy(): void {
    for (const { gpu } of this.#all) {
      gpu.destroy();
    }
    this.#free.clear();
    this.#all.clear();
  }

  #drop(buffer: WebGpuBuffer): void {
    this.#all.delete(buffer);
    this.#destroy(buffer);
  }
}
