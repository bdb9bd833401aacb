// Dot products of f32 rows with the multiply-add of products: of one with four, whose values are read once,
// and of two.

import { laneMask } from './convert';
import { madd } from './fuse';
import { sumLanes } from './reduce';

/** a . b0 to a . b3, of n elements; whole vectors are read past their ends. */
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
  // Transposed and added up: lane i of the result is the sum of the lanes of ci.
  const t0 = f32x4.add(v128.shuffle<i32>(c0, c1, 0, 4, 2, 6), v128.shuffle<i32>(c0, c1, 1, 5, 3, 7));
  const t1 = f32x4.add(v128.shuffle<i32>(c2, c3, 0, 4, 2, 6), v128.shuffle<i32>(c2, c3, 1, 5, 3, 7));
  return f32x4.add(v128.shuffle<i32>(t0, t1, 0, 1, 4, 5), v128.shuffle<i32>(t0, t1, 2, 3, 6, 7));
}

/** a . b, of n elements; whole vectors are read past their ends. */
export function oneDot(a: usize, b: usize, n: i32): f32 {
  let c0 = f32x4.splat(0);
  let c1 = f32x4.splat(0);
  let c2 = f32x4.splat(0);
  let c3 = f32x4.splat(0);
  let i = 0;
  for (; i + 16 <= n; i += 16) {
    const o = i << 2;
    c0 = madd(v128.load(a + o), v128.load(b + o), c0);
    c1 = madd(v128.load(a + o, 16), v128.load(b + o, 16), c1);
    c2 = madd(v128.load(a + o, 32), v128.load(b + o, 32), c2);
    c3 = madd(v128.load(a + o, 48), v128.load(b + o, 48), c3);
  }
  for (; i < n; i += 4) {
    const o = i << 2;
    const rest = laneMask(n - i);
    c0 = madd(v128.and(v128.load(a + o), rest), v128.and(v128.load(b + o), rest), c0);
  }
  return sumLanes(f32x4.add(f32x4.add(c0, c1), f32x4.add(c2, c3)));
}
