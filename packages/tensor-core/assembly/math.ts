// These are elementary functions on four f32 lanes. The coefficients are our own minimax fits
// (Lawson's iteration in float64). The largest errors over a million points, in units of the last
// place, are: exp 1.0, log 0.9, tanh 1.3, sigmoid 2.2, gelu 3 above x = -1. Below that, where gelu
// vanishes, the rounding of the exponential's argument shows: 6e-6 relative. NaN and infinities
// come out as in C.

import { madd } from './fuse';

@inline
function c(value: f32): v128 {
  return f32x4.splat(value);
}

@inline
function fma(a: v128, b: v128, add: v128): v128 {
  return f32x4.add(f32x4.mul(a, b), add);
}

/**
 * Computes e^x as 2^n times a polynomial in r, where x = n ln 2 + r and |r| <= ln 2 / 2. Results
 * may be subnormal.
 */
@inline
export function exp4(x0: v128): v128 {
  // pmax and pmin are one instruction each and keep NaN in this order, where max and min are eight.
  const x = f32x4.pmin(f32x4.pmax(x0, c(-110)), c(90));
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  const shifted = fma(x, c(1.4426950408889634), c(12582912));
  const n = f32x4.sub(shifted, c(12582912));
  // ln 2 is split in two parts. The first ends in zeros, so that n times it is exact.
  let r = f32x4.sub(x, f32x4.mul(n, c(0.693145751953125)));
  r = f32x4.sub(r, f32x4.mul(n, c(1.42860682030941723212e-6)));
  let q = fma(c(0.0013813144760206342), r, c(0.008369418792426586));
  q = fma(q, r, c(0.04166845604777336));
  q = fma(q, r, c(0.16666515171527863));
  q = fma(q, r, c(0.4999999403953552));
  const p = f32x4.add(fma(q, f32x4.mul(r, r), r), c(1));
  // 2^n is made of two factors, since n runs from -159 to 130, beyond the exponents of one f32.
  const k = i32x4.sub(shifted, i32x4.splat(0x4b400000));
  const half = i32x4.shr_s(k, 1);
  const low = i32x4.shl(i32x4.add(half, i32x4.splat(127)), 23);
  const high = i32x4.shl(i32x4.add(i32x4.sub(k, half), i32x4.splat(127)), 23);
  return f32x4.mul(f32x4.mul(p, high), low);
}

const EXP = memory.data<f32>([
  // the least exponent, whose result is 0; 1 / ln 2; 1.5 * 2^23 with the bias of exponents
  -88, 1.4426950408889634, 12583039,
  // the coefficients of 2^r, |r| <= 1/2, of which the last is 1
  0.0013269535265862942, 0.009671291336417198, 0.0555071085691452, 0.24022246897220612,
  0.6931470036506653, 1,
]);

/** V8 takes three instructions to build a constant from the code, and one to load it. */
@inline
function e(index: usize): v128 {
  return v128.load_splat<f32>(EXP + (index << 2));
}

/**
 * Computes e^x for x up to 0 (88 at most), which is what attention needs, in half the instructions
 * of exp4, by the multiply-add of products. Results below 2^-126 are 0. The rounding of x / ln 2
 * shows: the error is up to 2 units of the last place plus 1 for each unit of x.
 */
@inline
export function expOfNegative4(x0: v128): v128 {
  const x = f32x4.mul(f32x4.pmax(x0, e(0)), e(1));
  const shifted = f32x4.add(x, e(2));
  const r = f32x4.sub(x, f32x4.sub(shifted, e(2)));
  let p = madd(e(3), r, e(4));
  p = madd(p, r, e(5));
  p = madd(p, r, e(6));
  p = madd(p, r, e(7));
  p = madd(p, r, e(8));
  // The low bits of `shifted` are the exponent.
  return f32x4.mul(p, i32x4.shl(shifted, 23));
}

/** Computes the natural logarithm from x = 2^e (1 + f), with 1 + f in [sqrt(1/2), sqrt(2)]. */
@inline
export function log4(x0: v128): v128 {
  const tiny = f32x4.lt(x0, c(1.1754943508222875e-38));
  const x = v128.bitselect(f32x4.mul(x0, c(33554432)), x0, tiny);
  // Subtracting the bits of sqrt(1/2) borrows from the exponent where the mantissa is below
  // sqrt(2), which brings 1 + f into its range.
  const shifted = i32x4.sub(x, i32x4.splat(0x3f3504f3));
  const e0 = f32x4.convert_i32x4_s(i32x4.shr_s(shifted, 23));
  const e = f32x4.sub(e0, v128.and(tiny, c(25)));
  const bits = i32x4.add(
    v128.and(shifted, i32x4.splat(0x7fffff)),
    i32x4.splat(0x3f3504f3),
  );
  const f = f32x4.sub(bits, c(1));
  let p = fma(c(-0.07634492963552475), f, c(0.12761574983596802));
  p = fma(p, f, c(-0.13160182535648346));
  p = fma(p, f, c(0.14201758801937103));
  p = fma(p, f, c(-0.16623356938362122));
  p = fma(p, f, c(0.20001226663589478));
  p = fma(p, f, c(-0.2500081956386566));
  p = fma(p, f, c(0.3333333134651184));
  const z = f32x4.mul(f, f);
  let r = f32x4.mul(p, f32x4.mul(z, f));
  r = fma(e, c(1.42860682030941723212e-6), r);
  r = f32x4.sub(r, f32x4.mul(z, c(0.5)));
  r = f32x4.add(f, r);
  r = fma(e, c(0.693145751953125), r);
  r = v128.bitselect(c(-Infinity), r, f32x4.eq(x0, c(0)));
  r = v128.bitselect(c(NaN), r, f32x4.lt(x0, c(0)));
  // +infinity and NaN pass through.
  return v128.bitselect(r, x0, f32x4.lt(x0, c(Infinity)));
}

/** Uses an odd polynomial near 0, and 1 - 2 / (e^2x + 1) elsewhere. */
@inline
export function tanh4(x: v128): v128 {
  const a = f32x4.abs(x);
  const z = f32x4.mul(x, x);
  let p = fma(c(-0.0055151632986962795), z, c(0.02046941965818405));
  p = fma(p, z, c(-0.05368802323937416));
  p = fma(p, z, c(0.1333083063364029));
  p = fma(p, z, c(-0.3333325982093811));
  const small = fma(f32x4.mul(p, z), x, x);
  const e = exp4(f32x4.add(a, a));
  const big = f32x4.sub(c(1), f32x4.div(c(2), f32x4.add(e, c(1))));
  const signed = v128.or(big, v128.and(x, i32x4.splat(0x80000000)));
  return v128.bitselect(small, signed, f32x4.lt(a, c(0.65)));
}

/** Computes 1 / (1 + e^-x) from e^-|x|, so that small results keep their digits. */
@inline
export function sigmoid4(x: v128): v128 {
  return sigmoidOf(x, expOfMagnitude(x));
}

/** Computes e^-|x|, which the sigmoids of x and of -x have in common. */
@inline
export function expOfMagnitude(x: v128): v128 {
  return exp4(f32x4.neg(f32x4.abs(x)));
}

/** The sigmoid of x, where `e` is e^-|x|. */
@inline
export function sigmoidOf(x: v128, e: v128): v128 {
  const top = v128.bitselect(e, c(1), f32x4.lt(x, c(0)));
  return f32x4.div(top, f32x4.add(c(1), e));
}

/** The derivative of x times its sigmoid, where `e` is e^-|x|. */
@inline
export function siluSlope(x: v128, e: v128): v128 {
  const rising = f32x4.add(c(1), f32x4.mul(x, sigmoidOf(f32x4.neg(x), e)));
  return f32x4.mul(sigmoidOf(x, e), rising);
}

/**
 * The distribution function of the normal distribution, (1 + erf(x / sqrt 2)) / 2. Below |x| = 1.25
 * it is a polynomial, elsewhere e^(-x^2/2) times a polynomial in 1 / (1 + |x|/4), so that small
 * results keep their digits. `gauss` is e^(-x^2/2).
 */
@inline
export function normalCdf4(x: v128, gauss: v128): v128 {
  const a = f32x4.abs(x);
  const z = f32x4.mul(x, x);
  let p = fma(c(4.5814800841981196e-7), z, c(-8.965673259808682e-6));
  p = fma(p, z, c(0.00011484666902106255));
  p = fma(p, z, c(-0.0011869303416460752));
  p = fma(p, z, c(0.009973415173590183));
  p = fma(p, z, c(-0.06649035960435867));
  p = fma(p, z, c(0.3989422917366028));
  const small = fma(p, x, c(0.5));
  const t = f32x4.div(c(1), fma(a, c(0.25), c(1)));
  let q = fma(c(-0.04635782912373543), t, c(0.10702099651098251));
  q = fma(q, t, c(-0.017437290400266647));
  q = fma(q, t, c(0.08654006570577621));
  q = fma(q, t, c(0.07746414840221405));
  q = fma(q, t, c(0.09299469739198685));
  q = fma(q, t, c(0.10005033016204834));
  q = fma(q, t, c(0.09968467056751251));
  q = fma(q, t, c(2.942899754998507e-6));
  q = f32x4.mul(q, gauss);
  const tail = v128.bitselect(q, f32x4.sub(c(1), q), f32x4.lt(x, c(0)));
  return v128.bitselect(small, tail, f32x4.lt(a, c(1.25)));
}

@inline
export function gauss4(x: v128): v128 {
  return exp4(f32x4.mul(f32x4.mul(x, x), c(-0.5)));
}

/**
 * Returns the sine of angles in units of 2^-32 turns, within 1e-7. Integers find the quarter of the
 * turn, a polynomial does the rest.
 */
@inline
export function sineOfTurns(phase: v128): v128 {
  // The angle is a multiple of a quarter turn plus a rest of at most an eighth.
  const quarter = i32x4.shr_u(i32x4.add(phase, i32x4.splat(0x20000000)), 30);
  const rest = i32x4.sub(phase, i32x4.shl(quarter, 30));
  const r = f32x4.mul(f32x4.convert_i32x4_s(rest), c(1.4629180792671596e-9)); // pi / 2^31
  const z = f32x4.mul(r, r);
  let s = fma(c(-0.0001949554862221703), z, c(0.008331977762281895));
  s = fma(s, z, c(-0.16666650772094727));
  s = fma(f32x4.mul(s, z), r, r);
  let k = fma(c(0.000024438359105261043), z, c(-0.0013887366512790322));
  k = fma(k, z, c(0.04166664555668831));
  k = fma(f32x4.mul(k, z), z, fma(z, c(-0.5), c(1)));
  const isOdd = i32x4.shr_s(i32x4.shl(quarter, 31), 31);
  const sign = i32x4.shl(v128.and(quarter, i32x4.splat(2)), 30);
  return v128.xor(v128.bitselect(k, s, isOdd), sign);
}

/** Returns the cosine of angles in units of 2^-32 turns. */
@inline
export function cosineOfTurns(phase: v128): v128 {
  return sineOfTurns(i32x4.add(phase, i32x4.splat(0x40000000)));
}
