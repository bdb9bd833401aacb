// bfloat16 ("bf16", the upper half of an f32) to and from f32, on bit patterns. Narrowing rounds to
// nearest even and keeps infinities, subnormals and NaN (made quiet); widening is exact.

import { bitsOfF32, f32OfBits } from './float-bits.js';

/**
 * The bf16 bit pattern nearest to `x`, which is first rounded to f32.
 * @example
 * ```ts
 * import { bf16ToF32, f32ToBf16 } from '@shardweave/dtypes';
 *
 * console.log(bf16ToF32(f32ToBf16(3.14159))); // logs 3.140625
 * ```
 */
export function f32ToBf16(x: number): number {
  return bf16FromF32Bits(bitsOfF32(x));
}

/** The value of a bf16 bit pattern. */
export function bf16ToF32(bits: number): number {
  return f32OfBits(f32BitsFromBf16(bits));
}

/** The bf16 bits of an f32 that is given by its bits. */
export function bf16FromF32Bits(bits: number): number {
  if ((bits & 0x7fffffff) > 0x7f800000) {
    // Bit 6 makes a NaN quiet; without it a NaN whose upper half is zeros would become infinity.
    return ((bits >>> 16) | 0x40) & 0xffff;
  }
  // The largest finite values carry into infinity, as rounding to nearest requires.
  return ((bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16) & 0xffff;
}

/** The f32 bits (as an unsigned number) of a bf16 that is given by its bits. */
export function f32BitsFromBf16(bits: number): number {
  return (bits << 16) >>> 0;
}
