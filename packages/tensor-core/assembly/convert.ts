// These functions convert between storage and f32, so that kernels are written once for f32.
// `widen` gives the address of f32 values of any float storage (the storage itself where it is
// f32), and `narrow` stores a block of results. 16-bit values are rounded to nearest even, and NaN,
// infinities and subnormals are kept. Whole vectors are read past the end of a view, though never
// written: the heap leaves room for that.

import { BF16, F16, F32 } from './layout';

@inline
export function f16ToF32(h: v128): v128 {
  // Shifting exponent and mantissa into place and multiplying by 2^112 is right for normal and
  // subnormal numbers alike. Infinities and NaN get their exponent set.
  const em = i32x4.shl(v128.and(h, i32x4.splat(0x7fff)), 13);
  const scaled = f32x4.mul(em, i32x4.splat(0x77800000));
  const special = v128.and(
    i32x4.gt_s(em, i32x4.splat(0x0f7fffff)),
    i32x4.splat(0x7f800000),
  );
  const sign = i32x4.shl(v128.and(h, i32x4.splat(0x8000)), 16);
  return v128.or(v128.or(scaled, special), sign);
}

@inline
export function f32ToF16(x: v128): v128 {
  const a = v128.and(x, i32x4.splat(0x7fffffff));
  const odd = v128.and(i32x4.shr_u(a, 13), i32x4.splat(1));
  // 0xc8000fff subtracts 112 from the exponent and adds just under half of the last place.
  const normal = i32x4.shr_u(i32x4.add(i32x4.add(a, i32x4.splat(0xc8000fff)), odd), 13);
  // Adding 0.5 aligns the last place of a subnormal half with the last place of the f32.
  const subnormal = i32x4.sub(f32x4.add(a, f32x4.splat(0.5)), i32x4.splat(0x3f000000));
  let r = v128.bitselect(subnormal, normal, i32x4.lt_s(a, i32x4.splat(0x38800000)));
  r = v128.bitselect(i32x4.splat(0x7c00), r, i32x4.gt_s(a, i32x4.splat(0x477fffff)));
  const nan = v128.or(
    i32x4.splat(0x7e00),
    v128.and(i32x4.shr_u(a, 13), i32x4.splat(0x3ff)),
  );
  r = v128.bitselect(nan, r, i32x4.gt_s(a, i32x4.splat(0x7f800000)));
  return v128.or(r, v128.and(i32x4.shr_u(x, 16), i32x4.splat(0x8000)));
}

@inline
export function bf16ToF32(h: v128): v128 {
  return i32x4.shl(h, 16);
}

/** The first four of eight bf16 as f32: one instruction, where loadFour takes two. */
@inline
export function lowerBf16(eight: v128): v128 {
  return v128.shuffle<i16>(i32x4.splat(0), eight, 0, 8, 1, 9, 2, 10, 3, 11);
}

/** The last four. */
@inline
export function upperBf16(eight: v128): v128 {
  return v128.shuffle<i16>(i32x4.splat(0), eight, 4, 12, 5, 13, 6, 14, 7, 15);
}

@inline
export function f32ToBf16(x: v128): v128 {
  const odd = v128.and(i32x4.shr_u(x, 16), i32x4.splat(1));
  const rounded = i32x4.shr_u(i32x4.add(i32x4.add(x, i32x4.splat(0x7fff)), odd), 16);
  const nan = v128.or(i32x4.shr_u(x, 16), i32x4.splat(0x40));
  const a = v128.and(x, i32x4.splat(0x7fffffff));
  return v128.bitselect(nan, rounded, i32x4.gt_s(a, i32x4.splat(0x7f800000)));
}

/**
 * Returns four elements at an address as f32. The dtype should be a constant of the caller, so that
 * the tests of it are compiled away.
 */
@inline
export function loadFour(at: usize, dtype: i32): v128 {
  if (dtype == F32) return v128.load(at);
  const h = v128.load_ext<u16>(at);
  return dtype == F16 ? f16ToF32(h) : bf16ToF32(h);
}

/**
 * Returns the address of `n` elements of a float view from index `at` on, as f32. `scratch` must
 * have room for n + 8 of them.
 */
export function widen(base: usize, dtype: i32, at: u32, n: i32, scratch: usize): usize {
  if (dtype == F32) {
    return base + ((<usize>at) << 2);
  }
  const src = base + ((<usize>at) << 1);
  if (dtype == F16) {
    for (let i = 0; i < n; i += 8) {
      const s = src + (i << 1);
      const d = scratch + (i << 2);
      v128.store(d, f16ToF32(v128.load_ext<u16>(s)));
      v128.store(d, f16ToF32(v128.load_ext<u16>(s, 8)), 16);
    }
  } else {
    for (let i = 0; i < n; i += 8) {
      const s = src + (i << 1);
      const d = scratch + (i << 2);
      v128.store(d, bf16ToF32(v128.load_ext<u16>(s)));
      v128.store(d, bf16ToF32(v128.load_ext<u16>(s, 8)), 16);
    }
  }
  return scratch;
}

/**
 * Returns where to compute `n` results for index `at` of a view: in the view itself if it is f32,
 * else in scratch, from where `narrow` stores them.
 */
@inline
export function target(base: usize, dtype: i32, at: u32, scratch: usize): usize {
  return dtype == F32 ? base + ((<usize>at) << 2) : scratch;
}

/**
 * Stores `n` f32 values as elements of the view from index `at`. Values that are there already
 * stay.
 */
export function narrow(values: usize, base: usize, dtype: i32, at: u32, n: i32): void {
  if (dtype == F32) {
    const out = base + ((<usize>at) << 2);
    if (out != values) {
      copyFloats(values, out, n);
    }
    return;
  }
  let dst = base + ((<usize>at) << 1);
  const full = n & ~7;
  for (let i = 0; i < full; i += 8) {
    v128.store(dst, narrow8(values, dtype));
    values += 32;
    dst += 16;
  }
  let rest = n & 7;
  if (rest != 0) {
    let v = narrow8(values, dtype);
    while (rest > 0) {
      v128.store_lane<u16>(dst, v, 0);
      v = i8x16.shuffle(v, v, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1);
      dst += 2;
      rest--;
    }
  }
}

/** V8 calls a function of its host for memory.copy, which takes longer than a short row. */
function copyFloats(values: usize, out: usize, n: i32): void {
  const end = values + ((<usize>(n & ~3)) << 2);
  for (; values < end; values += 16, out += 16) {
    v128.store(out, v128.load(values));
  }
  if ((n & 3) != 0) {
    storePartial(out, v128.load(values), n & 3);
  }
}

@inline
function narrow8(values: usize, dtype: i32): v128 {
  const low = v128.load(values);
  const high = v128.load(values, 16);
  return dtype == F16
    ? i16x8.narrow_i32x4_u(f32ToF16(low), f32ToF16(high))
    : i16x8.narrow_i32x4_u(f32ToBf16(low), f32ToBf16(high));
}

/** Returns one element as f32. */
export function loadFloat(base: usize, dtype: i32, at: u32): f32 {
  if (dtype == F32) {
    return load<f32>(base + ((<usize>at) << 2));
  }
  const h = i32x4.splat(<i32>load<u16>(base + ((<usize>at) << 1)));
  return f32x4.extract_lane(dtype == F16 ? f16ToF32(h) : bf16ToF32(h), 0);
}

/** Stores one element, rounded to the dtype. */
export function storeFloat(base: usize, dtype: i32, at: u32, value: f32): void {
  if (dtype == F32) {
    store<f32>(base + ((<usize>at) << 2), value);
    return;
  }
  const v = f32x4.splat(value);
  const h = dtype == BF16 ? f32ToBf16(v) : f32ToF16(v);
  store<u16>(base + ((<usize>at) << 1), <u16>i32x4.extract_lane(h, 0));
}

/** Stores the first `n` lanes, of which there are 1 to 3. */
@inline
export function storePartial(ptr: usize, v: v128, n: i32): void {
  if (n & 2) {
    v128.store_lane<u64>(ptr, v, 0);
    if (n & 1) {
      v128.store_lane<u32>(ptr, v, 2, 8);
    }
  } else {
    v128.store_lane<u32>(ptr, v, 0);
  }
}

/** Returns a mask with all bits set in the first `n` lanes. */
@inline
export function laneMask(n: i32): v128 {
  return i32x4.lt_s(i32x4(0, 1, 2, 3), i32x4.splat(n));
}

@inline
export function isHalf(dtype: i32): bool {
  return dtype == F16 || dtype == BF16;
}
