// A panel holds `width` rows of op(a) or columns of op(b) as [k][width], in f32 whatever the
// storage. Panels stand a cache line more than their size apart, since at distances of a power of
// two, writing many at once would compete for the same cache sets.

import { widen } from './convert';
import { BLOCK_BYTES } from './elementwise';
import { F32 } from './layout';
import { scratchBase } from './slot';

@inline
export function panelBytes(kc: i32, width: i32): usize {
  return ((<usize>(kc * width)) << 2) + 64;
}

/**
 * Packs an operand stored [k, count], by cutting each row into pieces of 6 or 8. `ld` and `at`
 * count elements.
 */
export function packStraight(
  base: usize,
  dtype: i32,
  at: u32,
  ld: u32,
  kc: i32,
  count: i32,
  width: i32,
  panels: usize,
): void {
  const stride = panelBytes(kc, width);
  const step = (<usize>width) << 2;
  for (let k = 0; k < kc; k++) {
    let src = row(base, dtype, at, ld, count, k, 0);
    let dst = panels + <usize>k * step;
    if (width == 6) {
      for (let i = 0; i < count; i += 6) {
        v128.store(dst, v128.load(src));
        v128.store64_lane(dst, v128.load64_zero(src, 16), 0, 16);
        src += 24;
        dst += stride;
      }
    } else {
      for (let i = 0; i < count; i += 8) {
        v128.store(dst, v128.load(src));
        v128.store(dst, v128.load(src, 16), 16);
        src += 32;
        dst += stride;
      }
    }
  }
}

/**
 * Packs an operand stored [count, k], by transposing rows into a panel, four or two at a time. Rows
 * past `count` repeat the last one, and their results are never stored.
 */
export function packTransposed(
  base: usize,
  dtype: i32,
  at: u32,
  ld: u32,
  kc: i32,
  count: i32,
  width: i32,
  panels: usize,
): void {
  const stride = panelBytes(kc, width);
  const step = (<usize>width) << 2;
  const last = count - 1;
  for (let i = 0; i < count; i += width) {
    for (let r = i; r < min(i + width, count); r += 4) {
      const dst = panels + ((<usize>(r - i)) << 2);
      const r0 = row(base, dtype, at, ld, kc, r, 0);
      const r1 = row(base, dtype, at, ld, kc, min(r + 1, last), 1);
      if (r + 2 == i + width) {
        transposePair(r0, r1, kc, dst, step);
        break;
      }
      const r2 = row(base, dtype, at, ld, kc, min(r + 2, last), 2);
      const r3 = row(base, dtype, at, ld, kc, min(r + 3, last), 3);
      transposeRows(r0, r1, r2, r3, kc, dst, step);
    }
    panels += stride;
  }
}

/** Returns the address of n elements of row r as f32. A call for each row of f32 would show. */
@inline
function row(base: usize, dtype: i32, at: u32, ld: u32, n: i32, r: i32, slot: usize): usize {
  const first = at + <u32>r * ld;
  return dtype == F32
    ? base + ((<usize>first) << 2)
    : widen(base, dtype, first, n, scratchBase + BLOCK_BYTES * slot);
}

function transposeRows(
  r0: usize,
  r1: usize,
  r2: usize,
  r3: usize,
  kc: i32,
  dst: usize,
  step: usize,
): void {
  for (let k = 0; k < kc; k += 4) {
    const o = (<usize>k) << 2;
    const a = v128.load(r0 + o);
    const b = v128.load(r1 + o);
    const c = v128.load(r2 + o);
    const d = v128.load(r3 + o);
    const t0 = v128.shuffle<i32>(a, b, 0, 4, 1, 5);
    const t1 = v128.shuffle<i32>(c, d, 0, 4, 1, 5);
    const t2 = v128.shuffle<i32>(a, b, 2, 6, 3, 7);
    const t3 = v128.shuffle<i32>(c, d, 2, 6, 3, 7);
    v128.store(dst, v128.shuffle<i32>(t0, t1, 0, 1, 4, 5));
    if (k + 4 <= kc) {
      v128.store(dst + step, v128.shuffle<i32>(t0, t1, 2, 3, 6, 7));
      v128.store(dst + step * 2, v128.shuffle<i32>(t2, t3, 0, 1, 4, 5));
      v128.store(dst + step * 3, v128.shuffle<i32>(t2, t3, 2, 3, 6, 7));
    } else {
      if (k + 1 < kc) {
        v128.store(dst + step, v128.shuffle<i32>(t0, t1, 2, 3, 6, 7));
      }
      if (k + 2 < kc) {
        v128.store(dst + step * 2, v128.shuffle<i32>(t2, t3, 0, 1, 4, 5));
      }
    }
    dst += step * 4;
  }
}

/** Transposes two rows. Where kc is odd, a value past the last goes into the panel's padding. */
function transposePair(r0: usize, r1: usize, kc: i32, dst: usize, step: usize): void {
  for (let k = 0; k < kc; k += 2) {
    const o = (<usize>k) << 2;
    const pairs = v128.shuffle<i32>(v128.load64_zero(r0 + o), v128.load64_zero(r1 + o), 0, 4, 1, 5);
    v128.store64_lane(dst, pairs, 0);
    v128.store64_lane(dst + step, pairs, 1);
    dst += step * 2;
  }
}
