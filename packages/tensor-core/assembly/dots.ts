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
function rowDotsBf16(a: usize, b: usize, row: usize, rows: i32, n: u32, out: usize): void {
  rowDots(a, b, BF16, row, rows, n, out);
}

/** Each product is the sum of those of its blocks, and each of these has four vectors of sums. */
@inline
function rowDots(a: usize, b: usize, dtype: i32, row: usize, rows: i32, n: u32, out: usize): void {
  const step: usize = dtype == F32 ? 16 : 8;
  for (let end = out + ((<usize>rows) << 2); out < end; out += 4, b += row) {
    let total: f32 = 0;
    let x = a;
    let y = b;
    for (let k: u32 = 0; k < n; k += BLOCK) {
      const part = min<u32>(n - k, BLOCK);
      let c0 = f32x4.splat(0);
      let c1 = f32x4.splat(0);
      let c2 = f32x4.splat(0);
      let c3 = f32x4.splat(0);
      for (const whole = x + ((<usize>(part & ~15)) << 2); x < whole; x += 64, y += step * 4) {
        if (dtype == BF16) {
          const first = v128.load(y);
          const second = v128.load(y, 16);
          c0 = madd(v128.load(x), lowerBf16(first), c0);
          c1 = madd(v128.load(x, 16), upperBf16(first), c1);
          c2 = madd(v128.load(x, 32), lowerBf16(second), c2);
          c3 = madd(v128.load(x, 48), upperBf16(second), c3);
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
  }
}
