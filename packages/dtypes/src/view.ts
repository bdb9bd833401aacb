// Views bytes as the elements of a dtype, without a copy where their alignment allows it.

import { byteSize, type ReduceDType } from './dtype.js';

/** The typed array that holds a dtype's elements; 16-bit floats appear as their bit patterns. */
export type ElementArray = Float32Array | Uint16Array | Int32Array | Uint32Array | Uint8Array;

/**
 * `source` as elements of `dtype`: a view of the same memory where it is aligned, else a copy.
 * @throws {RangeError} where the bytes are not a whole number of elements
 */
export function viewAs(source: ArrayBufferView, dtype: ReduceDType): ElementArray {
  const size = byteSize(dtype);
  if (source.byteLength % size !== 0) {
    throw new RangeError(
      `viewAs: expected a multiple of ${size} bytes for ${dtype}, got ${source.byteLength}.`,
    );
  }
  let { buffer, byteOffset } = source;
  const length = source.byteLength / size;
  if (byteOffset % size !== 0) {
    buffer = buffer.slice(byteOffset, byteOffset + source.byteLength);
    byteOffset = 0;
  }
  switch (dtype) {
    case 'f32':
      return new Float32Array(buffer, byteOffset, length);
    case 'i32':
      return new Int32Array(buffer, byteOffset, length);
    case 'u32':
      return new Uint32Array(buffer, byteOffset, length);
    case 'u8':
      return new Uint8Array(buffer, byteOffset, length);
    default:
      return new Uint16Array(buffer, byteOffset, length);
  }
}
