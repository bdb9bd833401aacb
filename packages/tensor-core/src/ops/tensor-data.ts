// Checks what calls of a device accept: host values and their dtypes, shapes, and targets of writes
// in place.

import { byteSize, type DType, fromF32Array, isFloat } from '@shardweave/dtypes';
import { OptionError, ShapeError } from '../errors.js';
import { shown } from '../options.js';
import type { Shape, Tensor } from '../tensor.js';
import { isSameShape, requireSameDevice, shapeText } from './checks.js';

/** The values of a new tensor: numbers, or raw little-endian bytes with an explicit dtype. */
export type TensorData = readonly number[] | Float32Array | Int32Array | Uint32Array | Uint8Array;

export function checkShape(op: string, shape: Shape): void {
  for (const dim of shape) {
    if (!Number.isInteger(dim) || dim < 0) {
      throw new ShapeError(
        `${op}: expected whole dimensions of at least 0, got [${shape.join(', ')}].`,
      );
    }
  }
}

/**
 * Checks the operands of a write in place, before anything reaches the device: one device, one
 * shape, and a target that kernels can write and that shares no elements with the source, unless
 * both are the same elements.
 */
export function checkTarget(op: string, target: Tensor, source: Tensor): void {
  requireSameDevice(op, target, source);
  if (!isSameShape(target.shape, source.shape)) {
    throw new ShapeError(
      `${op}: expected target and source of one shape, got ${shapeText(target.shape)} and ${shapeText(source.shape)}. Reshape or broadcast the source first.`,
    );
  }
  checkWritten(op, target);
  const distance = Math.abs(target.offset - source.offset);
  if (target.storage === source.storage && distance > 0 && distance < target.size) {
    throw new ShapeError(
      `${op}: expected a source apart from the target, got elements from ${source.offset} and from ${target.offset} on, ${target.size} each, of one storage. Copy the source first, with cast or add.`,
    );
  }
}

/** Checks that kernels can write a tensor that exists: 16-bit kernels write whole words. */
export function checkWritten(op: string, target: Tensor): void {
  const end = target.offset + target.size;
  const isWhole =
    byteSize(target.dtype) === 4 ||
    (target.offset % 2 === 0 && (end % 2 === 0 || end === target.storage.elementCount));
  if (!isWhole) {
    throw new ShapeError(
      `${op}: expected a ${target.dtype} target of whole 32-bit words, got elements [${target.offset}, ${end}) of ${target.storage.elementCount}. 16-bit kernels write words.`,
    );
  }
}

/** Whether an integer dtype holds the number exactly. */
export function holds(dtype: DType, value: number): boolean {
  const least = dtype === 'i32' ? -(2 ** 31) : 0;
  return Number.isInteger(value) && value >= least && value < least + 2 ** 32;
}

/**
 * Returns the dtype that host values have by themselves.
 * @throws {OptionError} for bytes, which have none, and for what is no list of values
 */
export function dtypeOf(data: TensorData): DType {
  if (!Array.isArray(data) && !ArrayBuffer.isView(data)) {
    throw new OptionError(
      `tensor: expected an array of numbers or a typed array, got ${shown(data)}.`,
    );
  }
  if (data instanceof Uint8Array) {
    throw new OptionError(
      `tensor: expected a dtype for bytes, got ${data.byteLength} bytes without one. Pass { dtype }, or numbers.`,
    );
  }
  if (data instanceof Int32Array) {
    return 'i32';
  }
  if (data instanceof Uint32Array) {
    return 'u32';
  }
  return 'f32';
}

/**
 * Returns host values as the bytes of a dtype.
 * @throws {OptionError} for values that are no numbers, or that an integer dtype does not hold
 */
export function toBytes(data: TensorData, dtype: DType): Uint8Array {
  if (data instanceof Uint8Array) {
    return data;
  }
  const isSame =
    (data instanceof Float32Array && dtype === 'f32') ||
    (data instanceof Int32Array && dtype === 'i32') ||
    (data instanceof Uint32Array && dtype === 'u32');
  if (isSame) {
    return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  }
  checkValues(data, dtype);
  if (dtype === 'i32') {
    return new Uint8Array(Int32Array.from(data).buffer);
  }
  if (dtype === 'u32') {
    return new Uint8Array(Uint32Array.from(data).buffer);
  }
  return fromF32Array(Float32Array.from(data), dtype);
}

function checkValues(data: Exclude<TensorData, Uint8Array>, dtype: DType): void {
  const isWhole = !isFloat(dtype);
  if (!isWhole && !Array.isArray(data)) {
    return;
  }
  for (let i = 0; i < data.length; i++) {
    const value: unknown = data[i];
    if (typeof value !== 'number' || (isWhole && !holds(dtype, value))) {
      const expected = isWhole ? `whole numbers that ${dtype} holds` : 'numbers';
      throw new OptionError(`tensor: expected ${expected}, got ${shown(value)} as element ${i}.`);
    }
  }
}
