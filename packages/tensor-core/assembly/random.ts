// Random numbers are made from Philox4x32-10 by a recipe of integers (src/random-recipe.ts), whose
// only operation on floats is the last one, a product. The integers have at most 24 bits, so that
// converting them is exact.

import { narrow } from './convert';
import { philox32 } from './dropout';
import { BLOCK_BYTES } from './elementwise';
import { BLOCK, F32, RANDOM_NORMAL, RANDOM_UNIFORM } from './layout';
import { arg, argF, argI, chunkStart, scratchBase } from './slot';

/**
 * The table row of probability 1/2, in the numbering by the exponent and the first five bits of an
 * f32.
 */
const HALF_EXPONENT: i32 = 126 << 5;
/** A row has 2^4 bytes. */
const ROW_SHIFT: i32 = 4;

/**
 * The arguments are kind, out, dtype, size, key0, key1, offset low, offset high, scale, first,
 * range and the address of the table (normal) or 0.
 */
export function random(slot: usize, chunk: u32, chunks: u32): void {
  const isNormal = argI(slot, 0) == RANDOM_NORMAL;
  if (!isNormal && argI(slot, 0) != RANDOM_UNIFORM) {
    unreachable();
  }
  const out = <usize>arg(slot, 1);
  const outType = argI(slot, 2);
  const size = arg(slot, 3);
  const key0 = arg(slot, 4);
  const key1 = arg(slot, 5);
  const offset = (<u64>arg(slot, 7) << 32) | <u64>arg(slot, 6);
  const scale = f32x4.splat(argF(slot, 8));
  const words = scratchBase;
  // The words of a block start at the multiple of four at or below its first element, so that they
  // need up to three more places than the block has elements.
  const results = words + BLOCK_BYTES + 64;
  const end = chunkStart(size, chunk + 1, chunks, 64);
  for (let at = chunkStart(size, chunk, chunks, 64); at < end; at += BLOCK) {
    const n = <i32>min<u32>(end - at, BLOCK);
    const from = offset + <u64>at;
    const lead = <i32>(from & 3);
    for (let i = 0; i < n + lead; i += 32) {
      philox32((from >> 2) + <u64>(i >> 2), key0, key1, words + (i << 2));
    }
    const drawn = words + (lead << 2);
    if (isNormal) {
      normals(drawn, n, arg(slot, 9), arg(slot, 10), <usize>arg(slot, 11));
    } else {
      uniforms(drawn, n);
    }
    // f32 results in whole vectors are written to the output at once.
    const direct = outType == F32 && (n & 3) == 0;
    const into = direct ? out + ((<usize>at) << 2) : results;
    for (let i = 0; i < n; i += 4) {
      const o = i << 2;
      v128.store(into + o, f32x4.mul(f32x4.convert_i32x4_s(v128.load(drawn + o)), scale));
    }
    if (!direct) {
      narrow(results, out, outType, at, n);
    }
  }
}

/** Replaces words by odd integers within 2^24 of 0. */
function uniforms(words: usize, n: i32): void {
  for (let i = 0; i < n; i += 4) {
    const o = i << 2;
    const half = i32x4.shr_u(v128.load(words + o), 8);
    v128.store(words + o, i32x4.add(i32x4.add(half, half), i32x4.splat(1 - 0x1000000)));
  }
}

/**
 * Replaces words by normally distributed integers, four at once, as random-recipe.ts defines them.
 * The table's row is found from an f32 whose exponent and first bits are those of the tail. Low
 * bits are cut off first, so that no rounding changes the row.
 */
function normals(words: usize, n: i32, first: u32, range: u32, table: usize): void {
  if (range != 0) {
    for (let i = 0; i < n; i++) {
      const o = words + (i << 2);
      store<u32>(o, first + highWord(load<u32>(o), range));
    }
  }
  const rows = i32x4.splat(<i32>table - (HALF_EXPONENT << ROW_SHIFT));
  for (let i = 0; i < n; i += 4) {
    const o = words + (i << 2);
    const place = v128.load(o);
    const isUpper = i32x4.shr_s(place, 31);
    // Half of the tail, which is odd.
    const half = v128.and(v128.xor(place, isUpper), i32x4.splat(0x7fffffff));
    const isLong = i32x4.gt_s(half, i32x4.splat(0x400000));
    const exact = v128.andnot(half, v128.and(isLong, i32x4.splat(0x7f)));
    const float = f32x4.add(f32x4.convert_i32x4_s(exact), f32x4.splat(0.5));
    const row = i32x4.add(v128.and(i32x4.shr_u(float, 14), i32x4.splat(-16)), rows);
    // A row has a, b, c and the power of two that shifts the bits which chose the row out of a
    // tail.
    const r0 = v128.load(<usize>i32x4.extract_lane(row, 0));
    const r1 = v128.load(<usize>i32x4.extract_lane(row, 1));
    const r2 = v128.load(<usize>i32x4.extract_lane(row, 2));
    const r3 = v128.load(<usize>i32x4.extract_lane(row, 3));
    const ab01 = v128.shuffle<i32>(r0, r1, 0, 4, 1, 5);
    const ab23 = v128.shuffle<i32>(r2, r3, 0, 4, 1, 5);
    const cs01 = v128.shuffle<i32>(r0, r1, 2, 6, 3, 7);
    const cs23 = v128.shuffle<i32>(r2, r3, 2, 6, 3, 7);
    const a = v128.shuffle<i32>(ab01, ab23, 0, 1, 4, 5);
    const b = v128.shuffle<i32>(ab01, ab23, 2, 3, 6, 7);
    const c = v128.shuffle<i32>(cs01, cs23, 0, 1, 4, 5);
    const power = v128.shuffle<i32>(cs01, cs23, 2, 3, 6, 7);
    const tail = v128.or(i32x4.add(half, half), i32x4.splat(1));
    const t = i32x4.mul(tail, power);
    const inner = i32x4.sub(b, highWords(t, c));
    const distance = i32x4.shr_u(
      i32x4.add(i32x4.sub(a, highWords(t, inner)), i32x4.splat(128)),
      8,
    );
    // The number is negative where the place is in the lower half.
    const sign = v128.not(isUpper);
    v128.store(o, i32x4.sub(v128.xor(distance, sign), sign));
  }
}

@inline
function highWords(a: v128, b: v128): v128 {
  const low = i64x2.extmul_low_i32x4_u(a, b);
  const high = i64x2.extmul_high_i32x4_u(a, b);
  return v128.shuffle<i32>(low, high, 1, 3, 5, 7);
}

@inline
function highWord(a: u32, b: u32): u32 {
  return <u32>((<u64>a * <u64>b) >> 32);
}
