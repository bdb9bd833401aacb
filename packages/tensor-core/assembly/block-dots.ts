// Dot products of one row with rows of a matrix in ggml's blocks, whose numbers are decoded in
// registers. They are those of dots.ts over the decoded matrix to the bit: the same numbers,
// rounded to the same dtype, are added to the same four vectors of sums.

import { sixBitNumbers, sixBitPair } from './blocks';
import { RowDots } from './dots';
import { madd } from './fuse';
import {
  BF16,
  BLOCK,
  BLOCKS_Q4_0,
  BLOCKS_Q4_K,
  BLOCKS_Q6_K,
  BLOCKS_Q8_0,
  F16,
  F32,
} from './layout';
import { sumLanes } from './reduce';

/** Returns whether there is such a loop for these blocks, rounded to this dtype. */
@inline
export function hasBlockDots(type: i32, dtype: i32): bool {
  const isWritten =
    type == BLOCKS_Q8_0 || type == BLOCKS_Q4_0 || type == BLOCKS_Q4_K || type == BLOCKS_Q6_K;
  return dtype != F16 && isWritten;
}

export function blockDotsOf(type: i32, dtype: i32): RowDots {
  if (type == BLOCKS_Q8_0) {
    return dtype == F32 ? q8DotsF32 : q8DotsBf16;
  }
  if (type == BLOCKS_Q4_0) {
    return dtype == F32 ? q4DotsF32 : q4DotsBf16;
  }
  if (type == BLOCKS_Q4_K) {
    return dtype == F32 ? q4KDotsF32 : q4KDotsBf16;
  }
  return dtype == F32 ? q6KDotsF32 : q6KDotsBf16;
}

function q8DotsF32(a: usize, b: usize, row: usize, rows: i32, n: u32, out: usize): void {
  blockDots(a, b, BLOCKS_Q8_0, F32, row, rows, n, out);
}
function q8DotsBf16(a: usize, b: usize, row: usize, rows: i32, n: u32, out: usize): void {
  blockDots(a, b, BLOCKS_Q8_0, BF16, row, rows, n, out);
}
function q4DotsF32(a: usize, b: usize, row: usize, rows: i32, n: u32, out: usize): void {
  blockDots(a, b, BLOCKS_Q4_0, F32, row, rows, n, out);
}
function q4DotsBf16(a: usize, b: usize, row: usize, rows: i32, n: u32, out: usize): void {
  blockDots(a, b, BLOCKS_Q4_0, BF16, row, rows, n, out);
}
function q4KDotsF32(a: usize, b: usize, row: usize, rows: i32, n: u32, out: usize): void {
  blockDots(a, b, BLOCKS_Q4_K, F32, row, rows, n, out);
}
function q4KDotsBf16(a: usize, b: usize, row: usize, rows: i32, n: u32, out: usize): void {
  blockDots(a, b, BLOCKS_Q4_K, BF16, row, rows, n, out);
}
function q6KDotsF32(a: usize, b: usize, row: usize, rows: i32, n: u32, out: usize): void {
  blockDots(a, b, BLOCKS_Q6_K, F32, row, rows, n, out);
}
function q6KDotsBf16(a: usize, b: usize, row: usize, rows: i32, n: u32, out: usize): void {
  blockDots(a, b, BLOCKS_Q6_K, BF16, row, rows, n, out);
}

/** Sixteen numbers of one scale and minimum become two vectors of eight, and these four of four. */
@inline
function blockDots(
  a: usize,
  b: usize,
  type: i32,
  dtype: i32,
  row: usize,
  rows: i32,
  n: u32,
  out: usize,
): void {
  const bytes: usize =
    type == BLOCKS_Q8_0 ? 34 : type == BLOCKS_Q4_0 ? 18 : type == BLOCKS_Q4_K ? 144 : 210;
  const sixteens: u32 = type == BLOCKS_Q8_0 || type == BLOCKS_Q4_0 ? 2 : 16;
  for (let end = out + ((<usize>rows) << 2); out < end; out += 4, b += row) {
    let total: f32 = 0;
    let x = a;
    let y = b;
    for (let k: u32 = 0; k < n; k += BLOCK) {
      let c0 = f32x4.splat(0);
      let c1 = f32x4.splat(0);
      let c2 = f32x4.splat(0);
      let c3 = f32x4.splat(0);
      for (const whole = x + ((<usize>min<u32>(n - k, BLOCK)) << 2); x < whole; y += bytes) {
        let scale = scaleAt(type == BLOCKS_Q6_K ? y + 208 : y);
        const own = scale;
        let minimum = f32x4.splat(0);
        const ownMinimum = type == BLOCKS_Q4_K ? scaleAt(y + 2) : minimum;
        for (let i: u32 = 0; i < sixteens; i++, x += 64) {
          let low: v128;
          let high: v128;
          if (type == BLOCKS_Q8_0) {
            const at = y + <usize>(i << 4);
            low = v128.load_ext<i8>(at, 2);
            high = v128.load_ext<i8>(at, 10);
          } else if (type == BLOCKS_Q4_0) {
            low = nibblesMinus(v128.load_ext<u8>(y, 2), i != 0, 8);
            high = nibblesMinus(v128.load_ext<u8>(y, 10), i != 0, 8);
          } else if (type == BLOCKS_Q4_K) {
            const part = i >> 1;
            if ((i & 1) == 0) {
              const pair = sixBitPair(y + 4, part);
              scale = f32x4.mul(own, f32x4.splat(<f32>(pair & 63)));
              minimum = f32x4.mul(ownMinimum, f32x4.splat(<f32>(pair >> 8)));
            }
            const at = y + 16 + <usize>((part >> 1) * 32 + ((i & 1) << 4));
            low = nibblesMinus(v128.load_ext<u8>(at), (part & 1) != 0, 0);
            high = nibblesMinus(v128.load_ext<u8>(at, 8), (part & 1) != 0, 0);
          } else {
            const numbers = sixBitNumbers(y, i >> 1, i & 1);
            scale = f32x4.mul(own, f32x4.splat(<f32>load<i8>(y + 192 + <usize>i)));
            low = i16x8.extend_low_i8x16_s(numbers);
            high = i16x8.extend_high_i8x16_s(numbers);
          }
          const hasMinimum = type == BLOCKS_Q4_K;
          const v0 = i32x4.extend_low_i16x8_s(low);
          const v1 = i32x4.extend_high_i16x8_s(low);
          const v2 = i32x4.extend_low_i16x8_s(high);
          const v3 = i32x4.extend_high_i16x8_s(high);
          c0 = madd(v128.load(x), four(v0, scale, minimum, hasMinimum, dtype), c0);
          c1 = madd(v128.load(x, 16), four(v1, scale, minimum, hasMinimum, dtype), c1);
          c2 = madd(v128.load(x, 32), four(v2, scale, minimum, hasMinimum, dtype), c2);
          c3 = madd(v128.load(x, 48), four(v3, scale, minimum, hasMinimum, dtype), c3);
        }
      }
      total += sumLanes(f32x4.add(f32x4.add(c0, c1), f32x4.add(c2, c3)));
    }
    store<f32>(out, total);
  }
}

/** The low or the high nibbles of eight bytes in lanes of 16 bits, minus their middle. */
@inline
function nibblesMinus(bytes: v128, areHigh: bool, middle: i16): v128 {
  const nibbles = areHigh ? i16x8.shr_u(bytes, 4) : v128.and(bytes, i16x8.splat(15));
  return middle == 0 ? nibbles : i16x8.sub(nibbles, i16x8.splat(middle));
}

/** Four numbers times their scale, which is exact in f32, minus their minimum, rounded. */
@inline
function four(numbers: v128, scale: v128, minimum: v128, hasMinimum: bool, dtype: i32): v128 {
  const product = f32x4.mul(f32x4.convert_i32x4_s(numbers), scale);
  const value = hasMinimum ? f32x4.sub(product, minimum) : product;
  if (dtype == F32) {
    return value;
  }
  // f32ToBf16 and bf16ToF32 of convert.ts but for NaN: scaleAt leaves one that this rounds well.
  const odd = v128.and(i32x4.shr_u(value, 16), i32x4.splat(1));
  const rounded = i32x4.add(i32x4.add(value, i32x4.splat(0x7fff)), odd);
  return v128.and(rounded, i32x4.splat(0xffff0000));
}

/** The f16 at an address in four lanes, as f16ToF32 gives it, with one NaN for all. */
@inline
export function scaleAt(at: usize): v128 {
  const h = <i32>load<i16>(at);
  if ((h & 0x7c00) == 0x7c00) {
    const infinity = ((h & 0x8000) << 16) | 0x7f800000;
    return i32x4.splat(h & 0x03ff ? 0x7fc00000 : infinity);
  }
  return f32x4.mul(i32x4.splat((h << 13) & 0x8fffe000), i32x4.splat(0x77800000));
}
