// This is the tanh form of gelu, x (1 + tanh(u)) / 2 with u = sqrt(2/pi) (x + 0.044715 x^3), and
// its gradient. The form is x / (1 + 2^w) with w = -2u / ln 2, which keeps the digits of small
// results; those below 3e-38 are 0. 2^w is a power of two times a polynomial in the rest r of w,
// |r| <= 1/2, which is our own minimax fit. The largest errors over a million points are 2.6 units
// of the last place above x = -1, and below that, where the rounding of w shows, 7e-6 relative.
//
// Note [four vectors]: four vectors at once are as many as V8 keeps in registers. Each constant is
// loaded once for all of them. Constants lie in memory, since V8 takes three instructions to build
// one from the code.

import { storePartial } from './convert';
import { BLOCK_BYTES } from './elementwise';
import { scratchBase } from './slot';

/** The values and bytes that one step takes. */
const STEP: i32 = 16;
const STEP_BYTES: usize = 64;
const CONSTANTS = memory.data<f32>([
  // Beyond these x the factor is 1 and 0. At the lower one 2^w is infinite.
  9, -10.06,
  // w = x (c3 + c2 x^2)
  -0.1029432395800235, -2.302208198144325,
  // 1.5 * 2^23, which rounds w to an integer in the low bits, and the bias of exponents
  12583039,
  // the coefficients of 2^r, of which the last is 1
  0.00015326480206567794, 0.0013390807434916496, 0.009618505835533142, 0.05550359934568405,
  0.24022647738456726, 0.6931471824645996, 1,
]);

@inline
function c(index: usize): v128 {
  return v128.load_splat<f32>(CONSTANTS + (index << 2));
}

@inline
function fma(a: v128, b: v128, add: v128): v128 {
  return f32x4.add(f32x4.mul(a, b), add);
}

/** pmin and pmax keep NaN in this order. */
@inline
function clamp(x: v128, most: v128, least: v128): v128 {
  return f32x4.pmax(f32x4.pmin(x, most), least);
}

export function geluTanh(x: usize, out: usize, n: i32): void {
  quotients(false, x, out, n);
}

/** Computes dy * f' of n values, at most BLOCK. */
export function geluTanhBackward(x: usize, dy: usize, out: usize, n: i32): void {
  // Four blocks belong to the kernels that call this.
  const factors = scratchBase + BLOCK_BYTES * 4;
  quotients(true, x, factors, n);
  let o: usize = 0;
  for (const end = (<usize>(n & ~7)) << 2; o < end; o += 32) {
    const first = gradient(x + o, dy + o, factors + o);
    const second = gradient(x + o + 16, dy + o + 16, factors + o + 16);
    v128.store(out + o, first);
    v128.store(out + o, second, 16);
  }
  if ((n & 4) != 0) {
    v128.store(out + o, gradient(x + o, dy + o, factors + o));
    o += 16;
  }
  if ((n & 3) != 0) {
    storePartial(out + o, gradient(x + o, dy + o, factors + o), n & 3);
  }
}

/** Returns dy (s + x s (1 - s) 2u'). The square is bounded, since 0 times infinity is NaN. */
@inline
function gradient(x0: usize, dy: usize, factor: usize): v128 {
  const x = v128.load(x0);
  const s = v128.load(factor);
  const square = f32x4.pmin(f32x4.mul(x, x), f32x4.splat(1e30));
  const inner = fma(square, f32x4.splat(0.21406444881780076), f32x4.splat(1.5957691216057308));
  const rise = f32x4.mul(f32x4.mul(x, s), f32x4.sub(f32x4.splat(1), s));
  return f32x4.mul(v128.load(dy), fma(rise, inner, s));
}

/** Computes x / (1 + 2^w) of n values, or 1 / (1 + 2^w). */
@inline
function quotients(isFactor: bool, x: usize, out: usize, n: i32): void {
  for (const end = x + ((<usize>(n & ~(STEP - 1))) << 2); x < end; x += STEP_BYTES) {
    step(isFactor, x, out);
    out += STEP_BYTES;
  }
  const rest = (<usize>(n & (STEP - 1))) << 2;
  if (rest != 0) {
    const own = scratchBase + BLOCK_BYTES * 5;
    memory.copy(own, x, rest);
    step(isFactor, own, own);
    memory.copy(out, own, rest);
  }
}

/** See Note [four vectors]. */
@inline
function step(isFactor: bool, x: usize, out: usize): void {
  let k = c(0);
  let l = c(1);
  const x0 = clamp(v128.load(x), k, l);
  const x1 = clamp(v128.load(x, 16), k, l);
  const x2 = clamp(v128.load(x, 32), k, l);
  const x3 = clamp(v128.load(x, 48), k, l);
  k = c(2);
  l = c(3);
  const w0 = f32x4.mul(x0, fma(f32x4.mul(x0, x0), k, l));
  const w1 = f32x4.mul(x1, fma(f32x4.mul(x1, x1), k, l));
  const w2 = f32x4.mul(x2, fma(f32x4.mul(x2, x2), k, l));
  const w3 = f32x4.mul(x3, fma(f32x4.mul(x3, x3), k, l));
  k = c(4);
  const n0 = f32x4.add(w0, k);
  const n1 = f32x4.add(w1, k);
  const n2 = f32x4.add(w2, k);
  const n3 = f32x4.add(w3, k);
  const r0 = f32x4.sub(w0, f32x4.sub(n0, k));
  const r1 = f32x4.sub(w1, f32x4.sub(n1, k));
  const r2 = f32x4.sub(w2, f32x4.sub(n2, k));
  const r3 = f32x4.sub(w3, f32x4.sub(n3, k));
  k = c(5);
  l = c(6);
  let p0 = fma(k, r0, l);
  let p1 = fma(k, r1, l);
  let p2 = fma(k, r2, l);
  let p3 = fma(k, r3, l);
  k = c(7);
  p0 = fma(p0, r0, k);
  p1 = fma(p1, r1, k);
  p2 = fma(p2, r2, k);
  p3 = fma(p3, r3, k);
  k = c(8);
  p0 = fma(p0, r0, k);
  p1 = fma(p1, r1, k);
  p2 = fma(p2, r2, k);
  p3 = fma(p3, r3, k);
  k = c(9);
  p0 = fma(p0, r0, k);
  p1 = fma(p1, r1, k);
  p2 = fma(p2, r2, k);
  p3 = fma(p3, r3, k);
  k = c(10);
  p0 = fma(p0, r0, k);
  p1 = fma(p1, r1, k);
  p2 = fma(p2, r2, k);
  p3 = fma(p3, r3, k);
  const one = c(11);
  p0 = fma(p0, r0, one);
  p1 = fma(p1, r1, one);
  p2 = fma(p2, r2, one);
  p3 = fma(p3, r3, one);
  // 1 + 2^w: the low bits of n are the exponent of 2^(w - r).
  p0 = fma(p0, i32x4.shl(n0, 23), one);
  p1 = fma(p1, i32x4.shl(n1, 23), one);
  p2 = fma(p2, i32x4.shl(n2, 23), one);
  p3 = fma(p3, i32x4.shl(n3, 23), one);
  v128.store(out, f32x4.div(isFactor ? one : v128.load(x), p0));
  v128.store(out, f32x4.div(isFactor ? one : v128.load(x, 16), p1), 16);
  v128.store(out, f32x4.div(isFactor ? one : v128.load(x, 32), p2), 32);
  v128.store(out, f32x4.div(isFactor ? one : v128.load(x, 48), p3), 48);
}
