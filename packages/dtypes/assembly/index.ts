// These are sums (and max, min) over the parts of several ranks, for one slice at a time. Each part
// is accumulated in rank order into an f32 (or integer) accumulator, and finish then divides,
// rounds once and stores. Counts are rounded up to 16 elements. The buffers have room for that, and
// nothing reads the surplus.

export { dequantize, quantize, scale, updateResidual } from './codec';

const F32: i32 = 0;
const F16: i32 = 1;
const BF16: i32 = 2;
const I32: i32 = 3;
const U8: i32 = 5;

const ADD: i32 = 0;
const MAX: i32 = 1;

/** Returns memory that stays reserved, since the stub runtime frees nothing. */
export function reserve(byteLength: usize): usize {
  return heap.alloc(byteLength);
}

/** Widens `count` elements of the first part into the accumulator. */
export function start(dtype: i32, acc: usize, source: usize, count: i32): void {
  if (dtype == F16) {
    for (let i: usize = 0, n = <usize>count; i < n; i += 4) {
      v128.store(acc + (i << 2), loadWide(F16, source, i));
    }
  } else {
    for (let i: usize = 0, n = <usize>count; i < n; i += 4) {
      v128.store(acc + (i << 2), loadWide(BF16, source, i));
    }
  }
}

/**
 * Computes acc = acc op source. Each dtype has a loop of its own, since the engine doesn't move the
 * choice out of a loop.
 */
export function accumulate(dtype: i32, op: i32, acc: usize, source: usize, count: i32): void {
  if (dtype == F32) {
    accumulateFloat(F32, op, acc, source, count);
  } else if (dtype == F16) {
    accumulateFloat(F16, op, acc, source, count);
  } else if (dtype == BF16) {
    accumulateFloat(BF16, op, acc, source, count);
  } else if (dtype == U8) {
    for (let i: usize = 0, n = <usize>count; i < n; i += 16) {
      v128.store(acc + i, byte(op, v128.load(acc + i), v128.load(source + i)));
    }
  } else {
    for (let i: usize = 0, n = <usize>count; i < n; i += 4) {
      const at = acc + (i << 2);
      v128.store(at, integer(dtype, op, v128.load(at), v128.load(source + (i << 2))));
    }
  }
}

/**
 * Computes target = a op b for dtypes that are combined without widening: all but the 16-bit
 * floats.
 */
export function combine(
  dtype: i32,
  op: i32,
  target: usize,
  a: usize,
  b: usize,
  count: i32,
): void {
  if (dtype == F32) {
    const n = <usize>count << 2;
    if (op == ADD) {
      for (let i: usize = 0; i < n; i += 32) {
        v128.store(target + i, f32x4.add(v128.load(a + i), v128.load(b + i)));
        v128.store(target + i, f32x4.add(v128.load(a + i, 16), v128.load(b + i, 16)), 16);
      }
    } else if (op == MAX) {
      for (let i: usize = 0; i < n; i += 16) {
        v128.store(target + i, f32x4.max(v128.load(a + i), v128.load(b + i)));
      }
    } else {
      for (let i: usize = 0; i < n; i += 16) {
        v128.store(target + i, f32x4.min(v128.load(a + i), v128.load(b + i)));
      }
    }
  } else if (dtype == U8) {
    for (let i: usize = 0, n = <usize>count; i < n; i += 16) {
      v128.store(target + i, byte(op, v128.load(a + i), v128.load(b + i)));
    }
  } else {
    for (let i: usize = 0, n = <usize>count << 2; i < n; i += 16) {
      v128.store(target + i, integer(dtype, op, v128.load(a + i), v128.load(b + i)));
    }
  }
}

// @ts-expect-error: decorators on functions are AssemblyScript's
@inline
function accumulateFloat(dtype: i32, op: i32, acc: usize, source: usize, count: i32): void {
  const n = <usize>count;
  if (op == ADD) {
    for (let i: usize = 0; i < n; i += 4) {
      const at = acc + (i << 2);
      v128.store(at, f32x4.add(v128.load(at), loadWide(dtype, source, i)));
    }
  } else if (op == MAX) {
    for (let i: usize = 0; i < n; i += 4) {
      const at = acc + (i << 2);
      v128.store(at, f32x4.max(v128.load(at), loadWide(dtype, source, i)));
    }
  } else {
    for (let i: usize = 0; i < n; i += 4) {
      const at = acc + (i << 2);
      v128.store(at, f32x4.min(v128.load(at), loadWide(dtype, source, i)));
    }
  }
}

/**
 * Divides by `divisor` (by 1 nothing changes) and stores `count` elements as `dtype` at `target`.
 */
export function finish(dtype: i32, acc: usize, target: usize, count: i32, divisor: i32): void {
  const n = <usize>count;
  if (dtype == U8) {
    for (let i: usize = 0; i < n; i++) {
      store<u8>(target + i, <u8>(<u32>load<u8>(acc + i) / <u32>divisor));
    }
    return;
  }
  if (dtype > BF16) {
    for (let i: usize = 0; i < n; i++) {
      const value = load<i32>(acc + (i << 2));
      const mean = dtype == I32 ? value / divisor : <i32>(<u32>value / <u32>divisor);
      store<i32>(target + (i << 2), mean);
    }
    return;
  }
  const by = f32x4.splat(<f32>divisor);
  if (dtype == F32) {
    for (let i: usize = 0; i < n; i += 4) {
      v128.store(target + (i << 2), f32x4.div(v128.load(acc + (i << 2)), by));
    }
    return;
  }
  if (dtype == F16) {
    for (let i: usize = 0; i < n; i += 8) {
      store8(F16, acc + (i << 2), target + (i << 1), by);
    }
  } else {
    for (let i: usize = 0; i < n; i += 8) {
      store8(BF16, acc + (i << 2), target + (i << 1), by);
    }
  }
}

// @ts-expect-error: decorators on functions are AssemblyScript's
@inline
function store8(dtype: i32, at: usize, target: usize, by: v128): void {
  const low = narrow(dtype, f32x4.div(v128.load(at), by));
  const high = narrow(dtype, f32x4.div(v128.load(at, 16), by));
  v128.store(target, i16x8.narrow_i32x4_u(low, high));
}

// @ts-expect-error: decorators on functions are AssemblyScript's
@inline
function byte(op: i32, a: v128, b: v128): v128 {
  if (op == ADD) {
    return i8x16.add(a, b);
  }
  return op == MAX ? i8x16.max_u(a, b) : i8x16.min_u(a, b);
}

// @ts-expect-error: decorators on functions are AssemblyScript's
@inline
function integer(dtype: i32, op: i32, a: v128, b: v128): v128 {
  if (op == ADD) {
    return i32x4.add(a, b);
  }
  if (dtype == I32) {
    return op == MAX ? i32x4.max_s(a, b) : i32x4.min_s(a, b);
  }
  return op == MAX ? i32x4.max_u(a, b) : i32x4.min_u(a, b);
}

// @ts-expect-error: decorators on functions are AssemblyScript's
@inline
function loadWide(dtype: i32, source: usize, i: usize): v128 {
  if (dtype == BF16) {
    return i32x4.shl(v128.load_ext<u16>(source + (i << 1)), 16);
  }
  if (dtype == F16) {
    return widenF16(v128.load_ext<u16>(source + (i << 1)));
  }
  return v128.load(source + (i << 2));
}

// Exponent and mantissa move up by 13 bits, and the exponent is rebased by 112. f16 subnormals are
// made normal by a subtraction that is exact, and infinity and NaN get the highest exponent.
// @ts-expect-error: decorators on functions are AssemblyScript's
@inline
function widenF16(half: v128): v128 {
  const sign = i32x4.shl(v128.and(half, i32x4.splat(0x8000)), 16);
  const shifted = i32x4.shl(v128.and(half, i32x4.splat(0x7fff)), 13);
  const normal = i32x4.add(shifted, i32x4.splat(112 << 23));
  const subnormal = f32x4.sub(
    i32x4.add(shifted, i32x4.splat(113 << 23)),
    i32x4.splat(113 << 23),
  );
  const special = v128.or(shifted, i32x4.splat(0x7f800000));
  let wide = v128.bitselect(subnormal, normal, i32x4.lt_s(shifted, i32x4.splat(1 << 23)));
  wide = v128.bitselect(special, wide, i32x4.ge_s(shifted, i32x4.splat(31 << 23)));
  return v128.or(wide, sign);
}

// @ts-expect-error: decorators on functions are AssemblyScript's
@inline
function narrow(dtype: i32, wide: v128): v128 {
  return dtype == F16 ? narrowF16(wide) : narrowBf16(wide);
}

// @ts-expect-error: decorators on functions are AssemblyScript's
@inline
function narrowBf16(wide: v128): v128 {
  const upper = i32x4.shr_u(wide, 16);
  const bias = i32x4.add(v128.and(upper, i32x4.splat(1)), i32x4.splat(0x7fff));
  const rounded = i32x4.shr_u(i32x4.add(wide, bias), 16);
  const quiet = v128.or(upper, i32x4.splat(0x40));
  return v128.bitselect(quiet, rounded, f32x4.ne(wide, wide));
}

// The FPU rounds subnormals: adding 2^-1 puts their last kept bit, 2^-24, at the end of the
// mantissa. Normals are rounded in integers, where a carry moves the exponent, up to infinity.
// @ts-expect-error: decorators on functions are AssemblyScript's
@inline
function narrowF16(wide: v128): v128 {
  const magnitude = v128.and(wide, i32x4.splat(0x7fffffff));
  const sign = i32x4.shr_u(v128.xor(wide, magnitude), 16);
  const half = i32x4.splat(126 << 23);
  const subnormal = i32x4.sub(f32x4.add(magnitude, half), half);
  const rebased = i32x4.sub(magnitude, i32x4.splat(112 << 23));
  const odd = v128.and(i32x4.shr_u(rebased, 13), i32x4.splat(1));
  const normal = i32x4.shr_u(i32x4.add(i32x4.add(rebased, i32x4.splat(0xfff)), odd), 13);
  const payload = v128.and(i32x4.shr_u(magnitude, 13), i32x4.splat(0x3ff));
  const nan = v128.or(payload, i32x4.splat(0x7e00));
  const infinity = i32x4.splat(0x7c00);
  let bits = v128.bitselect(subnormal, normal, i32x4.lt_s(magnitude, i32x4.splat(113 << 23)));
  bits = v128.bitselect(infinity, bits, i32x4.ge_s(magnitude, i32x4.splat(143 << 23)));
  bits = v128.bitselect(nan, bits, i32x4.gt_s(magnitude, i32x4.splat(0x7f800000)));
  return v128.or(bits, sign);
}
