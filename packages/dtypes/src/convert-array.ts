// Converts whole arrays between f32 and the bytes of any dtype, little-endian as all hosts are.
// Floats are converted by their bit patterns, so NaN payloads survive where the format has room for
// them.

import { bf16FromF32Bits, f32BitsFromBf16 } from './bfloat16.js';
import type { DType } from './dtype.js';
import { f16FromF32Bits, f32BitsFromF16 } from './float16.js';
import { viewAs } from './view.js';

/**
 * The elements of `source`, read as `dtype`, as f32 in a new array. Integers round to the nearest
 * f32.
 * @throws {RangeError} where the bytes are not a whole number of elements, or where `source` is an
 * array of another dtype
 */
export function toF32Array(source: ArrayBufferView, dtype: DType): Float32Array<ArrayBuffer> {
  const elements = viewAs(source, dtype);
  if (dtype === 'f32' || dtype === 'i32' || dtype === 'u32') {
    return Float32Array.from(elements);
  }
  if (dtype !== 'f16' && dtype !== 'bf16') {
    throw new RangeError(`toF32Array: expected f32, f16, bf16, i32 or u32, got '${dtype}'.`);
  }
  const output = new Float32Array(elements.length);
  const bits = new Uint32Array(output.buffer);
  const widen = dtype === 'f16' ? f32BitsFromF16 : f32BitsFromBf16;
  for (let i = 0; i < bits.length; i++) {
    bits[i] = widen(elements[i]!);
  }
  return output;
}

/**
 * `values` as the bytes of `dtype`, in a new array. 16-bit floats round to nearest even. Integers
 * truncate towards zero and saturate at their range, and NaN becomes 0.
 */
export function fromF32Array(
  values: Float32Array | readonly number[],
  dtype: DType,
): Uint8Array<ArrayBuffer> {
  const source = Float32Array.from(values);
  if (dtype === 'f32') {
    return new Uint8Array(source.buffer);
  }
  if (dtype === 'i32' || dtype === 'u32') {
    const output = dtype === 'i32' ? new Int32Array(source.length) : new Uint32Array(source.length);
    const low = dtype === 'i32' ? -(2 ** 31) : 0;
    const high = low + 2 ** 32 - 1;
    for (let i = 0; i < source.length; i++) {
      output[i] = Math.min(high, Math.max(low, Math.trunc(source[i]! || 0)));
    }
    return new Uint8Array(output.buffer);
  }
  if (dtype !== 'f16' && dtype !== 'bf16') {
    throw new RangeError(`fromF32Array: expected f32, f16, bf16, i32 or u32, got '${dtype}'.`);
  }
  const bits = new Uint32Array(source.buffer);
  const output = new Uint16Array(source.length);
  const narrow = dtype === 'f16' ? f16FromF32Bits : bf16FromF32Bits;
  for (let i = 0; i < output.length; i++) {
    output[i] = narrow(bits[i]!);
  }
  return new Uint8Array(output.buffer);
}
