// Tensors over GPUBuffers of the caller's, and the GPUBuffers behind tensors, for those who have
// pipelines of their own on the same GPUDevice.

import { byteSize, type DType } from '@shardweave/dtypes';
import { checkNames } from '../../check-options.js';
import type { Device } from '../../device.js';
import { OptionError, ShapeError } from '../../errors.js';
import { Storage } from '../../memory/storage.js';
import { checkShape } from '../../ops/tensor-data.js';
import { elementCountOf, type Shape, Tensor } from '../../tensor.js';
import { asGpuBuffer } from './queue/gpu-buffer.js';
import { WebGpuBackend } from './webgpu-backend.js';

/** How a caller's GPUBuffer is to be read as a tensor: the shape and dtype, and where it begins. */
export interface GpuTensorOptions {
  readonly shape: Shape;
  /** The elements' dtype. The default is f32. */
  readonly dtype?: DType;
  /** The byte at which the first element begins, a multiple of 4. The default is 0. */
  readonly byteOffset?: number;
  readonly requiresGrad?: boolean;
}

/** The place of a tensor's elements. */
export interface GpuTensorPlace {
  readonly buffer: GPUBuffer;
  readonly byteOffset: number;
  readonly byteLength: number;
}

/** The usages that a buffer must have: STORAGE, COPY_SRC and COPY_DST. */
const USAGE = 0x0080 | 0x0004 | 0x0008;

/**
 * Makes a tensor over a GPUBuffer of the caller's, of the GPUDevice that the backend was made with.
 * Nothing is copied. The buffer stays the caller's: no pool and no ledger counts it, and it is
 * never destroyed here. Once the tensor and the graphs that saved it are gone, the work that uses
 * the buffer has been submitted, and the caller may destroy it. Work that was submitted to the
 * queue before the tensor is used is seen.
 * @throws {OptionError} on other devices, and for a buffer that lacks a usage
 * @throws {ShapeError} where the elements don't fit the buffer
 * @throws {DeviceLostError} once the GPUDevice is known to be lost
 */
export function tensorFromGpuBuffer(
  device: Device,
  buffer: GPUBuffer,
  options: GpuTensorOptions,
): Tensor {
  const op = 'tensorFromGpuBuffer';
  checkNames(op, options, ['shape', 'dtype', 'byteOffset', 'requiresGrad']);
  const { shape, dtype = 'f32', byteOffset = 0, requiresGrad = false } = options;
  checkShape(op, shape);
  const { backend } = device;
  requireWebGpu(op, device);
  if ((buffer.usage & USAGE) !== USAGE) {
    throw new OptionError(
      `${op}: expected a buffer of usage STORAGE, COPY_SRC and COPY_DST, got ${buffer.usage}.`,
    );
  }
  const end = byteOffset + elementCountOf(shape) * byteSize(dtype);
  if (!(byteOffset >= 0 && byteOffset % 4 === 0 && Math.ceil(end / 4) * 4 <= buffer.size)) {
    throw new ShapeError(
      `${op}: expected whole 32-bit words within ${buffer.size} bytes, got bytes [${byteOffset}, ${end}).`,
    );
  }
  if (backend instanceof WebGpuBackend) {
    backend.requireSound();
  }
  const storage = new Storage(device, end / byteSize(dtype), dtype, 'activation');
  if (backend instanceof WebGpuBackend) {
    const borrowed = backend.borrow(buffer);
    storage.borrow(borrowed, () => backend.free(borrowed));
  } else {
    // A dry run has no bytes.
    storage.borrow({ id: -1, byteLength: buffer.size }, () => {});
  }
  const tensor = new Tensor(storage, shape, byteOffset / byteSize(dtype), requiresGrad);
  device.scopes.track(tensor);
  storage.release();
  return tensor;
}

/**
 * Returns the buffer behind a tensor. All work queued so far is submitted, so that what the caller
 * submits next to the same queue comes after it. A caller that writes to the buffer does so before
 * the next op that reads it. The buffer is the tensor's: it is valid until the tensor is disposed,
 * by its scope, say, and the caller must not destroy it.
 * @throws {OptionError} on other devices, and in a dry run
 * @throws {DeviceLostError} once the GPUDevice is known to be lost
 */
export function gpuBufferOf(tensor: Tensor): GpuTensorPlace {
  const { backend } = tensor.device;
  requireWebGpu('gpuBufferOf', tensor.device);
  if (!(backend instanceof WebGpuBackend)) {
    throw new OptionError('gpuBufferOf: expected a device with buffers, got that of a dry run.');
  }
  backend.requireSound();
  const { buffer, byteOffset, size, dtype } = tensor.view();
  const { gpu } = asGpuBuffer(buffer);
  backend.flush();
  return { buffer: gpu, byteOffset, byteLength: size * byteSize(dtype) };
}

function requireWebGpu(op: string, { backend }: Device): void {
  const { kind } = backend.info;
  if (kind !== 'webgpu') {
    throw new OptionError(`${op}: expected a device over webgpu, got one over ${kind}.`);
  }
}
