// An allocation on the WebGPU device.

import { DisposedError, OutOfMemoryError } from '../../../errors.js';
import type { BackendBuffer } from '../../../view.js';

export class WebGpuBuffer implements BackendBuffer {
  readonly id: number;
  readonly byteLength: number;
  readonly gpu: GPUBuffer;
  isFreed = false;
  readonly #isLost: (gpu: GPUBuffer) => boolean;

  constructor(id: number, gpu: GPUBuffer, isLost: (gpu: GPUBuffer) => boolean) {
    this.id = id;
    this.byteLength = gpu.size;
    this.gpu = gpu;
    this.#isLost = isLost;
  }

  /** See Note [lost buffers] in allocations.ts. */
  get isLost(): boolean {
    return this.#isLost(this.gpu);
  }
}

/**
 * The WebGPU side of a seam buffer, to be used in a command.
 * @throws {DisposedError} where it was freed or is another's.
 * @throws {OutOfMemoryError} where the device had no memory for it.
 */
export function asGpuBuffer(buffer: BackendBuffer): WebGpuBuffer {
  const live = asOwnBuffer(buffer);
  if (live.isLost) {
    throw new OutOfMemoryError(
      `webgpu: buffer ${buffer.id} (${live.gpu.label}) of ${buffer.byteLength} bytes has no memory behind it: its allocation failed. Dispose what holds it, and make it again.`,
      { requestedBytes: buffer.byteLength },
    );
  }
  return live;
}

/** As asGpuBuffer, of lost buffers too: those can still be freed. */
export function asOwnBuffer(buffer: BackendBuffer): WebGpuBuffer {
  if (!(buffer instanceof WebGpuBuffer)) {
    throw new DisposedError(`webgpu: buffer ${buffer.id} belongs to another device.`);
  }
  if (buffer.isFreed) {
    throw new DisposedError(`webgpu: buffer ${buffer.id} was freed.`);
  }
  return buffer;
}
