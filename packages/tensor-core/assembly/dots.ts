// These are dot products of rows, by the same multiply-add as matrix products: of one row with four
// others, and of one row with another.

import { laneMask, loadFour, lowerBf16, upperBf16 } from './convert';
import { madd } from './fuse';
import { BF16, BLOCK, F16, F32 } from './layout';
import { sumLanes } from './reduce';

/**
 * Returns the four products a . b0 to a . b3 of n elements. Whole vectors are read past their ends.
 */
export function fourDots(a: usize, b0: usize, b1: usize, b2: usize, b3: usize, n: i32): v128 {
  let c0 = f32x4.splat(0);
  let c1 = f32x4.splat(0);
  let c2 = f32x4.splat(0);
  let c3 = f32x4.splat(0);
  const whole = n & ~3;
  for (let i = 0; i < whole; i += 4) {
    const o = i << 2;
    const s = v128.load(a + o);
    c0 = madd(s, v128.load(b0 + o), c0);
    c1 = madd(s, v128.load(b1 + o), c1);
    c2 = madd(s, v128.load(b2 + o), c2);
    c3 = madd(s, v128.load(b3 + o), c3);
  }
  if (whole < n) {
    const o = whole << 2;
    const rest = laneMask(n - whole);
    const s = v128.and(v128.load(a + o), rest);
    c0 = madd(s, v128.and(v128.load(b0 + o), rest), c0);
    c1 = madd(s, v128.and(v128.load(b1 + o), rest), c1);
    c2 = madd(s, v128.and(v128.load(b2 + o), rest), c2);
    c3 = madd(s, v128.and(v128.load(b3 + o), rest), c3);
  }
  // The four vectors are transposed and added: lane i of the result is the sum of the lanes of ci.
  const t0 = f32x4.add(v128.shuffle<i32>(c0, c1, 0, 4, 2, 6), v128.shuffle<i32>(c0, c1, 1, 5, 3, 7));
  const t1 = f32x4.add(v128.shuffle<i32>(c2, c3, 0, 4, 2, 6), v128.shuffle<i32>(c2, c3, 1, 5, 3, 7));
  return f32x4.add(v128.shuffle<i32>(t0, t1, 0, 1, 4, 5), v128.shuffle<i32>(t0, t1, 2, 3, 6, 7));
}

/**
 * Stores the products of a with `rows` rows of b, which lie `row` bytes apart. a has n elements in
 * f32, and b those of the function's dtype. Whole vectors are read past the ends. The rows are a
 * loop of the function, since a processor then reads the next row while it adds up the sums of the
 * one before. This is a function of its own for the reason in Note [tiles] (product-tile.ts).
 */
export type RowDots = (a: usize, b: usize, row: usize, rows: i32, n: u32, out: usize) => void;

export function rowDotsOf(dtype: i32): RowDots {
  return dtype == F32 ? rowDotsF32 : dtype == F16 ? rowDotsF16 : rowDotsBf16;
}

function rowDotsF32(a: usize, b: usize, row: usize, rows: i32, n: u32, out: usize): void {
  rowDots(a, b, F32, row, rows, n, out);
}
function rowDotsF16(a: usize, b: usize, row: usize, rows: i32, n: u32, out: usize): void {
  rowDots(a, b, F16, row, rows, n, out);
}
/** Infinities and NaN have a conversion of their own, and a row that has any is read again. */
function exactRowDotsF16(a: usize, b: usize, n: u32, out: usize): void {
  rowDots(a, b, EXACT_F16, 0, 1, n, out);
}
function rowDotsBf16(a: usize, b: usize, row: usize, rows: i32, n: u32, out: usize): void {
  rowDots(a, b, BF16, row, rows, n, out);
}

/** Names the f16 of a row that may have infinities and NaN. */
const EXACT_F16: i32 = -1;
/** The bits of the least infinity in f16, without its sign. */
const INFINITY_F16: i16 = 0x7c00;

/** Each product is the sum of those of its blocks, and each of these has four vectors of sums. */
@inline
function rowDots(a: usize, b: usize, kind: i32, row: usize, rows: i32, n: u32, out: usize): void {
  const dtype = kind == EXACT_F16 ? F16 : kind;
  const step: usize = dtype == F32 ? 16 : 8;
  for (let end = out + ((<usize>rows) << 2); out < end; out += 4, b += row) {
    let total: f32 = 0;
    let x = a;
    let y = b;
    let largest = i32x4.splat(0); // of what is read as finite f16
    for (let k: u32 = 0; k < n; k += BLOCK) {
      const part = min<u32>(n - k, BLOCK);
      let c0 = f32x4.splat(0);
      let c1 = f32x4.splat(0);
      let c2 = f32x4.splat(0);
      let c3 = f32x4.splat(0);
      for (const whole = x + ((<usize>(part & ~15)) << 2); x < whole; x += 64, y += step * 4) {
        if (kind == BF16 || kind == F16) {
          const first = v128.load(y);
          const second = v128.load(y, 16);
          c0 = madd(v128.load(x), lowerFour(first, dtype), c0);
          c1 = madd(v128.load(x, 16), upperFour(first, dtype), c1);
          c2 = madd(v128.load(x, 32), lowerFour(second, dtype), c2);
          c3 = madd(v128.load(x, 48), upperFour(second, dtype), c3);
          if (dtype == F16) {
            const both = i16x8.max_s(magnitudes(first), magnitudes(second));
            largest = i16x8.max_s(largest, both);
          }
          continue;
        }
        c0 = madd(v128.load(x), loadFour(y, dtype), c0);
        c1 = madd(v128.load(x, 16), loadFour(y + step, dtype), c1);
        c2 = madd(v128.load(x, 32), loadFour(y + step * 2, dtype), c2);
        c3 = madd(v128.load(x, 48), loadFour(y + step * 3, dtype), c3);
      }
      for (let left = <i32>(part & 15); left > 0; left -= 4, x += 16, y += step) {
        const rest = laneMask(left);
        c0 = madd(v128.and(v128.load(x), rest), v128.and(loadFour(y, dtype), rest), c0);
      }
      total += sumLanes(f32x4.add(f32x4.add(c0, c1), f32x4.add(c2, c3)));
    }
    store<f32>(out, total);
    if (kind == F16 && v128.any_true(i16x8.ge_s(largest, i16x8.splat(INFINITY_F16)))) {
      exactRowDotsF16(a, b, n, out);
    }
  }
}

/** The first four of eight 16-bit floats, where those in f16 are finite. */
@inline
function lowerFour(eight: v128, dtype: i32): v128 {
  return dtype == F16 ? finiteF16(lowerBf16(eight)) : lowerBf16(eight);
}

@inline
function upperFour(eight: v128, dtype: i32): v128 {
  return dtype == F16 ? finiteF16(upperBf16(eight)) : upperBf16(eight);
}

/** Finite f16, each in the upper half of a lane, as f32: bits move, and 2^112 is left. */
@inline
function finiteF16(halves: v128): v128 {
  const moved = v128.and(i32x4.shr_s(halves, 3), i32x4.splat(0x8fffe000));
  return f32x4.mul(moved, i32x4.splat(0x77800000));
}

@inline
function magnitudes(halves: v128): v128 {
  return v128.and(halves, i16x8.splat(0x7fff));
}
