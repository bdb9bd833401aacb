// Sines and cosines in WGSL. The language promises an absolute error of 2^-11 between -pi and pi
// and nothing beyond. Here integer arithmetic, which is equal on every driver, brings angles into
// [-pi/4, pi/4], and polynomials do the rest.

/** WGSL `multiply_high(a, b)`: the high 32 bits of the product of two u32. */
export const MULTIPLY_HIGH = `
fn multiply_high(a: u32, b: u32) -> u32 {
  let low = (a & 0xffffu) * (b & 0xffffu);
  let cross = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
  let other = (a & 0xffffu) * (b >> 16u) + (cross & 0xffffu);
  return (a >> 16u) * (b >> 16u) + (cross >> 16u) + (other >> 16u);
}
`;

/**
 * WGSL `turn_sine(phase)` and `turn_cosine(phase)` of an angle in units of 2^-32 turns, so that
 * 0x40000000 is a quarter turn. The polynomials were fitted for this project and err by less than
 * 1e-7.
 */
export const TURNS = `
fn sine_near_zero(r: f32) -> f32 {
  let z = r * r;
  let p = fma(fma(-0.0001949554862221703, z, 0.008331977762281895), z, -0.16666650772094727);
  return fma(p * z, r, r);
}
fn cosine_near_zero(r: f32) -> f32 {
  let z = r * r;
  let p = fma(fma(0.000024438359105261043, z, -0.0013887366512790322), z, 0.04166664555668831);
  return fma(p * z, z, fma(z, -0.5, 1.0));
}
// The phase is a multiple of a quarter turn and a rest of at most an eighth.
fn turn_sine(phase: u32) -> f32 {
  let quarter = (phase + 0x20000000u) >> 30u;
  let r = f32(bitcast<i32>(phase - (quarter << 30u))) * 1.4629180792671596e-9; // pi / 2^31
  let value = select(sine_near_zero(r), cosine_near_zero(r), (quarter & 1u) == 1u);
  return select(value, -value, (quarter & 2u) == 2u);
}
fn turn_cosine(phase: u32) -> f32 { return turn_sine(phase + 0x40000000u); }
`;

/**
 * WGSL `sin_of(x)` and `cos_of(x)` for any f32, which return NaN for NaN and infinities.
 */
export const SIN_COS = `${MULTIPLY_HIGH}${TURNS}
// 1 / (2 pi) behind 32 zero bits, most significant word first.
var<private> turns_per_radian: array<u32, 8> = array<u32, 8>(
  0u, 0x28be60dbu, 0x9391054au, 0x7f09d5f4u, 0x7d4d3770u, 0x36d8a566u, 0x4f10e410u, 0x7f9458eau,
);
// |x| in units of 2^-32 turns, whole turns dropped (Payne and Hanek, 1983): x is m * 2^e with an
// integer m, and bits of 1 / (2 pi) above 2^-e count whole turns alone. For 2^-24 <= |x| <
// infinity.
fn phase_of(x: f32) -> u32 {
  let bits = bitcast<u32>(x) & 0x7fffffffu;
  let m = (bits & 0x7fffffu) | 0x800000u;
  let first = (bits >> 23u) - 118u; // the window's first bit
  let word = first >> 5u;
  let shift = first & 31u;
  let a = turns_per_radian[word];
  let b = turns_per_radian[word + 1u];
  let c = turns_per_radian[word + 2u];
  // A shift by 32 is none.
  let high = (a << shift) | select(b >> (32u - shift), 0u, shift == 0u);
  let low = (b << shift) | select(c >> (32u - shift), 0u, shift == 0u);
  return m * high + multiply_high(m, low);
}
fn sin_of(x: f32) -> f32 {
  if ((bitcast<u32>(x) & 0x7fffffffu) >= 0x7f800000u) { return nan(); }
  if (abs(x) < 0.78) { return sine_near_zero(x); }
  let value = turn_sine(phase_of(x));
  return select(value, -value, x < 0.0);
}
fn cos_of(x: f32) -> f32 {
  if ((bitcast<u32>(x) & 0x7fffffffu) >= 0x7f800000u) { return nan(); }
  if (abs(x) < 0.78) { return cosine_near_zero(x); }
  return turn_cosine(phase_of(x));
}
`;
