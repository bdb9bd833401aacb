// IEEE binary16 ("f16") to and from f32, on bit patterns. Narrowing rounds to nearest even and
// keeps infinities, subnormals and NaN (made quiet, top payload bits kept); widening is exact.

import { bitsOfF32, f32OfBits } from './float-bits.js';

/** The f16 bit pattern nearest to `x`, which is first rounded to f32. */
export function f32ToF16(x: number): number {
  return f16FromF32Bits(bitsOfF32(x));
}

/** The value of an f16 bit pattern. */
export function f16ToF32(bits: number): number {
  return f32OfBits(f32BitsFromF16(bits));
}

/** The f16 bits of an f32 that is given by its bits. */
export function f16FromF32Bits(bits: number): number {
  const sign = (bits >>> 16) & 0x8000;
  const magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) {
    return sign | 0x7e00 | ((magnitude >>> 13) & 0x3ff);
  }
  if (magnitude >= 0x47800000) {
    return sign | 0x7c00; // 65536 and above; what rounds up to it carries into infinity below
  }
  if (magnitude >= 0x38800000) {
    // Normal numbers: rebias the exponent by 112 and round off 13 bits; a carry moves the exponent.
    const rebased = magnitude - 0x38000000;
    return sign | ((rebased + 0xfff + ((rebased >>> 13) & 1)) >>> 13);
  }
  // Subnormal numbers: the mantissa in units of 2^-24, its lost bits rounded to nearest even.
  const exponent = magnitude >>> 23;
  const shift = 126 - exponent;
  if (shift > 24) {
    return sign; // below half of the smallest subnormal
  }
  const mantissa = (magnitude & 0x7fffff) | 0x800000;
  const kept = mantissa >>> shift;
  const lost = mantissa & ((1 << shift) - 1);
  const half = 1 << (shift - 1);
  const roundUp = lost > half || (lost === half && (kept & 1) === 1);
  return sign | (roundUp ? kept + 1 : kept);
}

/** The f32 bits (as an unsigned number) of an f16 that is given by its bits. */
export function f32BitsFromF16(half: number): number {
  const sign = (half & 0x8000) << 16;
  const exponent = (half >>> 10) & 0x1f;
  const mantissa = half & 0x3ff;
  if (exponent === 0x1f) {
    return (sign | 0x7f800000 | (mantissa << 13)) >>> 0;
  }
  if (exponent !== 0) {
    return (sign | ((exponent + 112) << 23) | (mantissa << 13)) >>> 0;
  }
  if (mantissa === 0) {
    return sign >>> 0;
  }
  // Subnormal in f16 but normal in f32: shift the leading one up to the hidden bit.
  const leading = Math.clz32(mantissa) - 21;
  return (sign | ((113 - leading) << 23) | (((mantissa << leading) & 0x3ff) << 13)) >>> 0;
}
