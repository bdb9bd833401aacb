// These are dot products of rows, by the same multiply-add as matrix products: of one row with four
// others, and of one row with another.

import { laneMask, loadFour } from './convert';
import { madd } from './fuse';
import { BF16, F16, F32 } from './layout';
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
 * Stores four vectors of partial sums of a . b, over the elements of n that make whole sixteens. a
 * is f32 and b has the function's dtype. finishDot adds the sums up. This is a function of its own
 * for the reason in Note [tiles] (product-tile.ts).
 */
export type DotSums = (a: usize, b: usize, n: i32, sums: usize) => void;

export function dotSumsOf(dtype: i32): DotSums {
  return dtype == F32 ? dotSumsF32 : dtype == F16 ? dotSumsF16 : dotSumsBf16;
}

function dotSumsF32(a: usize, b: usize, n: i32, sums: usize): void {
  dotSums(a, b, F32, n, sums);
}
function dotSumsF16(a: usize, b: usize, n: i32, sums: usize): void {
  dotSums(a, b, F16, n, sums);
}
function dotSumsBf16(a: usize, b: usize, n: i32, sums: usize): void {
  dotSums(a, b, BF16, n, sums);
}

@inline
function dotSums(a: usize, b: usize, dtype: i32, n: i32, sums: usize): void {
  let c0 = f32x4.splat(0);
  let c1 = f32x4.splat(0);
  let c2 = f32x4.splat(0);
  let c3 = f32x4.splat(0);
  const step: usize = dtype == F32 ? 16 : 8;
  const end = a + ((<usize>(n & ~15)) << 2);
  while (a < end) {
    c0 = madd(v128.load(a), loadFour(b, dtype), c0);
    c1 = madd(v128.load(a, 16), loadFour(b + step, dtype), c1);
    c2 = madd(v128.load(a, 32), loadFour(b + step * 2, dtype), c2);
    c3 = madd(v128.load(a, 48), loadFour(b + step * 3, dtype), c3);
    a += 64;
    b += step * 4;
  }
  v128.store(sums, c0);
  v128.store(sums, c1, 16);
  v128.store(sums, c2, 32);
  v128.store(sums, c3, 48);
}

/**
 * Returns a . b of n elements from the partial sums of its sixteens. Whole vectors are read past
 * the ends.
 */
export function finishDot(a: usize, b: usize, dtype: i32, n: i32, sums: usize): f32 {
  let c0 = v128.load(sums);
  for (let i = n & ~15; i < n; i += 4) {
    const rest = laneMask(n - i);
    const four = loadFour(b + ((<usize>i) << (dtype == F32 ? 2 : 1)), dtype);
    c0 = madd(v128.and(v128.load(a + ((<usize>i) << 2)), rest), v128.and(four, rest), c0);
  }
  c0 = f32x4.add(c0, v128.load(sums, 16));
  return sumLanes(f32x4.add(c0, f32x4.add(v128.load(sums, 32), v128.load(sums, 48))));
}
