// Functions whose bits no engine decides. ECMAScript leaves Math.exp, Math.cos, `**` and their kin
// to each engine, so two browsers may give weights that differ. Here are only + - * / of float64,
// which are rounded alike everywhere, and the bits of exponents. tooling/checks/leaks.test.ts keeps
// the engine's own functions out of all other files.

const BITS = new DataView(new ArrayBuffer(8));
/** ln 2 in two parts. The first has 32 bits, so its product with an exponent is exact. */
const LN2_HIGH = 0.6931471803691238;
const LN2_LOW = 1.9082149292705877e-10;
/** A table, since a sampler takes the exponential of each token's logit. */
const POWERS_OF_TWO = /* @__PURE__ */ normalPowersOfTwo();
/** What float64's pi lacks. */
const PI_LOW = 1.2246467991473532e-16;
/** Above and below these, exp leaves the range of float64. */
const MOST_EXPONENT = 709.782712893384;
const LEAST_EXPONENT = -745.1332191019412;

/** A number as the sum of two, of which the second is below the last place of the first. */
type Pair = readonly [high: number, low: number];

/** The whole part of the logarithm of a positive number to base 2: exact, and 0 for 1. */
export function floorLog2(x: number): number {
  BITS.setFloat64(0, x);
  return ((BITS.getUint32(0) >>> 20) & 0x7ff) - 1023;
}

/** e to the power of x, within 0.9 units in the last place, the same bits in every engine. */
export function exp64(x: number): number {
  return expOfSum(x, 0);
}

/**
 * The natural logarithm of x, within 0.52 units in the last place, the same bits in every engine.
 * It is NaN below 0.
 */
export function log64(x: number): number {
  return logPair(x)[0];
}

/**
 * `base` to the power of `exponent` for a base of at least 0, the same bits in every engine. Powers
 * of whole numbers are exact up to 2^53, and those of 2 everywhere. Others are within 1 unit in the
 * last place where they are from e^-16 to e^16, and within 16 anywhere.
 */
export function pow64(base: number, exponent: number): number {
  if (exponent === 0 || base === 1) {
    return 1;
  }
  if (Number.isInteger(base) && Number.isInteger(exponent)) {
    const power = wholePower(base, Math.abs(exponent));
    if (power <= Number.MAX_SAFE_INTEGER + 1) {
      return exponent < 0 ? 1 / power : power;
    }
  }
  const [high, low] = logPair(base);
  const product = high * exponent;
  if (!(Math.abs(product) < 800)) {
    return expOfSum(product, 0); // also where splitting would overflow
  }
  return expOfSum(product, productError(high, exponent, product) + low * exponent);
}

/**
 * The cosine of pi x, within 1.4 units in the last place, the same bits in every engine. Quarter
 * turns are exact, which the cosine of a rounded multiple of pi is not.
 */
export function cosPi64(x: number): number {
  const turned = Math.abs(x) % 2;
  const half = turned > 1 ? 2 - turned : turned;
  const quarter = half > 0.5 ? 1 - half : half; // All of these differences are exact.
  const value = quarter <= 0.25 ? cosine(Math.PI * quarter) : sineOfPi(0.5 - quarter);
  return half > 0.5 ? -value : value;
}

/** By squaring, as far as the result can be exact. */
function wholePower(base: number, exponent: number): number {
  let power = 1;
  let factor = base;
  for (let rest = exponent; rest > 0; rest = Math.floor(rest / 2)) {
    power *= rest % 2 === 1 ? factor : 1;
    factor *= factor;
    if (power > Number.MAX_SAFE_INTEGER + 1) {
      break;
    }
  }
  return power;
}

/** exp(high + low): 2^k exp(r), where r is at most half of ln 2. */
function expOfSum(high: number, low: number): number {
  if (!(high <= MOST_EXPONENT)) {
    return high + Number.POSITIVE_INFINITY; // NaN stays NaN
  }
  if (high < LEAST_EXPONENT) {
    return 0;
  }
  const k = Math.floor(high / Math.LN2 + 0.5); // with Math.round exp takes a quarter longer in V8
  const exact = high - k * LN2_HIGH;
  const rest = k * LN2_LOW - low;
  const r = exact - rest;
  const lost = exact - r - rest;
  const value = 1 + (r + (r * r * expTerms(r) + lost));
  if (k > -1022 && k < 1024) {
    return value * twoTo(k);
  }
  // A result below the normal numbers is rounded once, by the second product.
  const first = Math.trunc(k / 2);
  return value * twoTo(first) * twoTo(k - first);
}

/** The series of exp from its quadratic term on, written out since samplers ask it a token each. */
function expTerms(r: number): number {
  const far = 1 / 3628800 + r * (1 / 39916800 + r * (1 / 479001600 + r * (1 / 6227020800)));
  const middle = 1 / 720 + r * (1 / 5040 + r * (1 / 40320 + r * (1 / 362880 + r * far)));
  return 1 / 2 + r * (1 / 6 + r * (1 / 24 + r * (1 / 120 + r * middle)));
}

/** ln x = k ln 2 + ln m, and ln m = 2 artanh s for s = (m - 1) / (m + 1), at most 0.172. */
function logPair(x: number): Pair {
  if (!(x > 0) || x === Number.POSITIVE_INFINITY) {
    const limit = x === 0 ? Number.NEGATIVE_INFINITY : x < 0 ? Number.NaN : x;
    return [limit, 0];
  }
  if (x < 2 ** -1022) {
    const [high, low] = logPair(x * 2 ** 54);
    return joined(high - 54 * LN2_HIGH, low - 54 * LN2_LOW);
  }
  let k = floorLog2(x);
  let m = x / twoTo(k);
  if (m > Math.SQRT2) {
    m /= 2;
    k += 1;
  }
  const f = m - 1;
  const divisor = 2 + f;
  const s = f / divisor;
  const product = s * divisor;
  const divisorLow = f - (divisor - 2);
  const sLow = (f - product - productError(s, divisor, product) - s * divisorLow) / divisor;
  const z = s * s;
  const tail = s * z * logTerms(z) + 2 * sLow * (1 + z);
  const [high, low] = joined(k * LN2_HIGH, 2 * s);
  return joined(high, low + (tail + k * LN2_LOW));
}

/** cos x for x from 0 to a quarter of pi. */
function cosine(x: number): number {
  const z = x * x;
  return 1 + (z / -2 + z * z * alternating(z, 4));
}

/** sin(pi x) for x from 0 to 1/4. */
function sineOfPi(x: number): number {
  const angle = Math.PI * x;
  const low = productError(Math.PI, x, angle) + PI_LOW * x;
  const z = angle * angle;
  return angle + (low - angle * z * alternating(z, 3));
}

/** 1 / n! - z / (n + 2)! + z^2 / (n + 4)! - ..., up to the eighth term. */
function alternating(z: number, n: number): number {
  let sum = 0;
  for (let i = n + 14; i >= n; i -= 2) {
    sum = 1 / factorial(i) - z * sum;
  }
  return sum;
}

/** 2/3 + 2/5 z + 2/7 z^2 + ..., eleven terms. */
function logTerms(z: number): number {
  let sum = 0;
  for (let n = 23; n >= 3; n -= 2) {
    sum = 2 / n + z * sum;
  }
  return sum;
}

/** Exact up to 18!, and rounded from there by products that every engine rounds alike. */
function factorial(n: number): number {
  let product = 1;
  for (let i = 2; i <= n; i++) {
    product *= i;
  }
  return product;
}

/** a + b without a rounding, where a is 0 or the larger one (Dekker, 1971). */
function joined(a: number, b: number): Pair {
  const sum = a + b;
  return a === 0 ? [b, 0] : [sum, b - (sum - a)];
}

/** a b - product, exactly: both are cut into halves whose products have no rounding (Dekker). */
function productError(a: number, b: number, product: number): number {
  const [aHigh, aLow] = halves(a);
  const [bHigh, bLow] = halves(b);
  return aLow * bLow - (product - aHigh * bHigh - aLow * bHigh - aHigh * bLow);
}

function halves(x: number): Pair {
  const scaled = x * 134217729; // 2^27 + 1
  const high = scaled - (scaled - x);
  return [high, x - high];
}

/** 2^k for k from -1022 to 1023. */
function twoTo(k: number): number {
  return POWERS_OF_TWO[k + 1022]!;
}

function normalPowersOfTwo(): Float64Array {
  const powers = new Float64Array(2046);
  let power = 2 ** -1022;
  for (let i = 0; i < powers.length; i++) {
    powers[i] = power;
    power *= 2;
  }
  return powers;
}
