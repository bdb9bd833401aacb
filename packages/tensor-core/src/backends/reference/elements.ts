// Access to elements for the reference kernels, which read and write numbers. Each store rounds to
// the dtype. A 16-bit store rounds to f32 first, as kernels that compute in f32 do.

import { bf16ToF32, f16ToF32, f32ToBf16, f32ToF16 } from '@shardweave/dtypes';
import type { View } from '../../view.js';

/** The elements of one view. */
export interface Elements {
  readonly size: number;
  get(i: number): number;
  /**
   * Stores a value. A float dtype rounds it to nearest even; an integer dtype truncates it toward
   * zero and saturates, and stores 0 for NaN.
   */
  set(i: number, value: number): void;
}

/** The function by which a kernel gets access to a view. */
export type Open = (view: View) => Elements;

/** Opens `view` over the bytes of its buffer. */
export function openElements(bytes: ArrayBufferLike, view: View): Elements {
  const { byteOffset, size } = view;
  switch (view.dtype) {
    case 'f32':
      return direct(new Float32Array(bytes, byteOffset, size));
    case 'f16':
      return packed(new Uint16Array(bytes, byteOffset, size), f16ToF32, f32ToF16);
    case 'bf16':
      return packed(new Uint16Array(bytes, byteOffset, size), bf16ToF32, f32ToBf16);
    case 'i32':
      return saturating(new Int32Array(bytes, byteOffset, size), -(2 ** 31), 2 ** 31 - 1);
    case 'u32':
      return saturating(new Uint32Array(bytes, byteOffset, size), 0, 2 ** 32 - 1);
  }
}

/** Returns the rows that a norm works on: x, or the sum with a residual, which it stores first. */
export function addRows(
  call: {
    readonly x: View;
    readonly residual?: View | undefined;
    readonly sum?: View | undefined;
  },
  open: Open,
): Elements {
  const x = open(call.x);
  if (call.residual === undefined || call.sum === undefined) {
    return x;
  }
  const residual = open(call.residual);
  const sum = open(call.sum);
  for (let i = 0; i < sum.size; i++) {
    sum.set(i, x.get(i) + residual.get(i));
  }
  return sum;
}

/** Returns all elements as numbers, for kernels that read each of them many times. */
export function valuesOf(elements: Elements): Float64Array {
  return Float64Array.from({ length: elements.size }, (_, i) => elements.get(i));
}

/** Returns the bits of a view's elements, for kernels that only move them. */
export function openBits(bytes: ArrayBuffer, view: View): Uint16Array | Uint32Array {
  const is16 = view.dtype === 'f16' || view.dtype === 'bf16';
  return is16
    ? new Uint16Array(bytes, view.byteOffset, view.size)
    : new Uint32Array(bytes, view.byteOffset, view.size);
}

function direct(array: Float32Array): Elements {
  return {
    size: array.length,
    get: (i) => array[i]!,
    set: (i, value) => {
      array[i] = value;
    },
  };
}

function packed(
  array: Uint16Array,
  decode: (bits: number) => number,
  encode: (value: number) => number,
): Elements {
  return {
    size: array.length,
    get: (i) => decode(array[i]!),
    set: (i, value) => {
      array[i] = encode(Math.fround(value));
    },
  };
}

function saturating(array: Int32Array | Uint32Array, min: number, max: number): Elements {
  return {
    size: array.length,
    get: (i) => array[i]!,
    set: (i, value) => {
      array[i] = Number.isNaN(value) ? 0 : Math.min(max, Math.max(min, Math.trunc(value)));
    },
  };
}
