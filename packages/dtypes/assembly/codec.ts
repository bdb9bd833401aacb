// This is block quantization of f32 to int8, for one slice of whole blocks. A block has its f32
// scale and one signed byte for each of up to 256 elements. The caller pads values with zeros to a
// multiple of 16 elements.

const BLOCK: i32 = 256;

/**
 * A block whose scale is smaller counts as zeros, since the reciprocal of the scale would not be
 * finite.
 */
const SMALLEST: f32 = 1.0e-35;

/**
 * Turns `count` f32 at `values` into blocks at `coded`. A block with an infinity or NaN decodes to
 * NaN.
 */
export function quantize(values: usize, coded: usize, count: i32): void {
  for (let at: i32 = 0; at < count; at += BLOCK) {
    const size = min(BLOCK, count - at);
    const source = values + (<usize>at << 2);
    const scale = scaleOf(source, size);
    store<f32>(coded, scale);
    const inverse = f32x4.splat(scale > 0 ? <f32>1 / scale : 0);
    for (let i: i32 = 0; i < size; i += 16) {
      const from = source + (<usize>i << 2);
      const low = i16x8.narrow_i32x4_s(round(from, inverse), round(from + 16, inverse));
      const high = i16x8.narrow_i32x4_s(round(from + 32, inverse), round(from + 48, inverse));
      v128.store(coded + 4 + <usize>i, i8x16.narrow_i16x8_s(low, high));
    }
    coded += 4 + <usize>size;
  }
}

/**
 * Turns blocks at `coded` back into `count` f32 at `values`. Up to 3 more elements may be written.
 */
export function dequantize(coded: usize, values: usize, count: i32): void {
  for (let at: i32 = 0; at < count; at += BLOCK) {
    const size = min(BLOCK, count - at);
    const target = values + (<usize>at << 2);
    const scale = f32x4.splat(load<f32>(coded));
    for (let i: i32 = 0; i < size; i += 4) {
      const bytes = v128.load32_zero(coded + 4 + <usize>i);
      const wide = i32x4.extend_low_i16x8_s(i16x8.extend_low_i8x16_s(bytes));
      v128.store(target + (<usize>i << 2), f32x4.mul(f32x4.convert_i32x4_s(wide), scale));
    }
    coded += 4 + <usize>size;
  }
}

/**
 * Sets residual, which holds the decoded values, to values - residual: what quantization has lost.
 * Where that is not finite it sets 0, since what overflowed has arrived as such, and an infinity or
 * NaN would stay in the residual for good.
 */
export function updateResidual(residual: usize, values: usize, count: i32): void {
  const largest = f32x4.splat(f32.MAX_VALUE);
  for (let i: usize = 0, n = <usize>count << 2; i < n; i += 16) {
    const lost = f32x4.sub(v128.load(values + i), v128.load(residual + i));
    const isFinite = f32x4.le(f32x4.abs(lost), largest);
    v128.store(residual + i, v128.and(lost, isFinite));
  }
}

/** Multiplies values by a factor. */
export function scale(values: usize, count: i32, factor: f32): void {
  const by = f32x4.splat(factor);
  for (let i: usize = 0, n = <usize>count << 2; i < n; i += 16) {
    v128.store(values + i, f32x4.mul(v128.load(values + i), by));
  }
}

/**
 * Returns the largest magnitude over 127. It is infinite or NaN where a value is, and then decodes
 * to NaN.
 */
// @ts-expect-error: decorators on functions are AssemblyScript's
@inline
function scaleOf(source: usize, size: i32): f32 {
  let largest = f32x4.splat(0);
  for (let i: i32 = 0; i < size; i += 4) {
    // max is NaN where an operand is.
    largest = f32x4.max(largest, f32x4.abs(v128.load(source + (<usize>i << 2))));
  }
  const pair = f32x4.max(largest, v128.shuffle<f32>(largest, largest, 2, 3, 0, 1));
  const most = f32x4.extract_lane(f32x4.max(pair, v128.shuffle<f32>(pair, pair, 1, 0, 3, 2)), 0);
  return most < SMALLEST ? 0 : most / 127;
}

// @ts-expect-error: decorators on functions are AssemblyScript's
@inline
function round(from: usize, inverse: v128): v128 {
  const scaled = f32x4.nearest(f32x4.mul(v128.load(from), inverse));
  const bounded = f32x4.max(f32x4.min(scaled, f32x4.splat(127)), f32x4.splat(-127));
  return i32x4.trunc_sat_f32x4_s(bounded);
}
