// An allocation on the WebGPU device.

import type { BackendBuffer } from '../../backend.js';
import { DisposedError } from '../../errors.js';

export class WebGpuBuffer implements BackendBuffer {
  readonly id: number;
  readonly byteLength: number;
  readonly gpu: GPUBuffer;
  isFreed = false;

  constructor(id: number, gpu: GPUBuffer) {
    this.id = id;
    this.byteLength = gpu.size;
    this.gpu = gpu;
  }
}

/** The WebGPU side of a seam buffer. Throws DisposedError where it was freed or is another's. */
export function asGpuBuffer(buffer: BackendBuffer): WebGpuBuffer {
  if (!(buffer instanceof WebGpuBuffer)) {
    throw new DisposedError(`webgpu: buffer ${buffer.id} belongs to another device.`);
  }
  if (buffer.isFreed) throw new DisposedError(`webgpu: buffer ${buffer.id} was freed.`);
  return buffer;
}
