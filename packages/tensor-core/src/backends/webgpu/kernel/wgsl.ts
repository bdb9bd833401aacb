// WGSL functions that kernels share: 16-bit conversions and index arithmetic. Stores convert by
// bits, since drivers may flush subnormals, assume there are no NaNs, or truncate in pack2x16float.
// Loads of f16 use unpack2x16float, which is one instruction; the cast kernel, which must keep
// every bit pattern, has F16_UNPACK_EXACT.

/**
 * What defineKernel puts in front of every kernel: the bits of 16-bit floats, tests for NaN and
 * infinities, the larger and the smaller of two numbers, exp and log that keep NaN (drivers make
 * numbers of it), and the index of a workgroup.
 *
 * Note [by bits]: WGSL lets a driver assume that there are no NaNs and no infinities, and Metal's
 * fast math does. A comparison with either may then be folded to false, and one with an operand
 * that may be NaN turned around. So kernels ask by bits, and `larger` and `smaller`, which are NaN
 * where an operand is, ask for both operands.
 */
export const COMMON_FUNCTIONS = `
fn is_nan(v: f32) -> bool { return (bitcast<u32>(v) & 0x7fffffffu) > 0x7f800000u; }
fn is_infinite(v: f32) -> bool { return (bitcast<u32>(v) & 0x7fffffffu) == 0x7f800000u; }
fn is_lowest(v: f32) -> bool { return bitcast<u32>(v) == 0xff800000u; }
fn are_lowest(v: vec4<f32>) -> vec4<bool> { return bitcast<vec4<u32>>(v) == vec4<u32>(0xff800000u); }
fn larger(a: f32, b: f32) -> f32 { return select(a, b, is_nan(b) || (b > a && !is_nan(a))); }
fn smaller(a: f32, b: f32) -> f32 { return select(a, b, is_nan(b) || (b < a && !is_nan(a))); }
fn exp_of(v: f32) -> f32 { return select(exp(v), v, is_nan(v)); }
fn log_of(v: f32) -> f32 { return select(log(v), v, is_nan(v)); }
fn f16_bits(v: f32) -> u32 {
  let u = bitcast<u32>(v);
  let a = u & 0x7fffffffu;
  // Adding 0.5 leaves a * 2^24, rounded to nearest even, in the low bits.
  let small = bitcast<u32>(bitcast<f32>(a) + 0.5) - 0x3f000000u;
  let normal = (a + 0xfffu + ((a >> 13u) & 1u) - 0x38000000u) >> 13u;
  var r = select(normal, small, a < 0x38800000u);
  r = select(r, 0x7c00u, a >= 0x477ff000u);
  r = select(r, 0x7e00u, a > 0x7f800000u);
  return r | ((u >> 16u) & 0x8000u);
}
fn f16_pack(low: f32, high: f32) -> u32 { return f16_bits(low) | (f16_bits(high) << 16u); }
fn f16_unpack(word: u32, half: u32) -> f32 { return unpack2x16float(word >> (half << 4u)).x; }
fn bf16_bits(v: f32) -> u32 {
  let u = bitcast<u32>(v);
  let r = (u + 0x7fffu + ((u >> 16u) & 1u)) >> 16u;
  return select(r, (u >> 16u) | 0x40u, (u & 0x7fffffffu) > 0x7f800000u);
}
fn bf16_pack(low: f32, high: f32) -> u32 { return bf16_bits(low) | (bf16_bits(high) << 16u); }
fn bf16_unpack(word: u32, half: u32) -> f32 {
  return bitcast<f32>((word >> (half << 4u)) << 16u);
}
fn group_index(id: vec3<u32>, count: vec3<u32>) -> u32 { return id.y * count.x + id.x; }
`.trim();

/** WGSL that gives the f32 bits of every f16, whatever the driver does to subnormals. */
export const F16_UNPACK_EXACT = `
fn f16_unpack_exact(word: u32, half: u32) -> u32 {
  let h = word >> (half << 4u);
  let m = h & 0x7fffu;
  let tiny = bitcast<u32>(f32(m) * 5.9604644775390625e-8);
  var r = select((m << 13u) + 0x38000000u, tiny, m < 0x400u);
  r = select(r, (m << 13u) | 0x7f800000u, m >= 0x7c00u);
  return r | ((h & 0x8000u) << 16u);
}
`.trim();

/**
 * WGSL `divide(i, d)`: i / d by a reciprocal and two corrections, because software drivers divide
 * integers lane by lane, and hardware has no integer division either. It is exact for d < 2^31.
 */
export const INTEGER_DIVIDE = `
fn divide(i: u32, d: u32) -> u32 {
  let inv = 1.0 / f32(d);
  var q = u32(f32(i) * inv);
  q = u32(i32(q) + i32(floor(f32(i32(i - q * d)) * inv)));
  let r = i32(i - q * d);
  return select(select(q, q + 1u, r >= i32(d)), q - 1u, r < 0);
}
`.trim();

/** Returns the head of `main` for kernels that index by workgroup and invocation. */
export function mainHead(workgroupSize: readonly [number, number, number]): string {
  return `@compute @workgroup_size(${workgroupSize.join(', ')})
fn main(
  @builtin(workgroup_id) group_id: vec3<u32>,
  @builtin(num_workgroups) group_count: vec3<u32>,
  @builtin(local_invocation_id) local_id: vec3<u32>,
  @builtin(local_invocation_index) lane: u32,
) {
  let group = group_index(group_id, group_count);`;
}

/**
 * WGSL `nan()` and `inf()`, which defineKernel declares where a body calls them. Their bits come
 * from the parameter block: constant expressions may not have such values, and compilers with fast
 * math make others of what they can fold.
 */
export const SPECIAL_VALUES = `
fn nan() -> f32 { return bitcast<f32>(P.inf_bits | 0x400000u); }
fn inf() -> f32 { return bitcast<f32>(P.inf_bits); }
`.trim();

/** The bits of infinity, which the recorder puts behind the parameters of every dispatch. */
export const INF_BITS = 0x7f800000;
