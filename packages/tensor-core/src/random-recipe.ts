// Random numbers by integer arithmetic and one f32 product, so that all devices, threads and splits
// give equal bits. Logarithms would not, since those of GPUs, CPUs and JavaScript engines differ.
// The floating-point arithmetic here uses only + - * / and roots, which IEEE 754 rounds alike
// everywhere.

import { pow64 } from '@shardweave/dtypes/float64';

/**
 * The fraction bits of a normal number. A random number is an integer of at most 24 bits, which f32
 * holds exactly, times a scale.
 */
export const NORMAL_BITS = 21;
/** The bits of a uniform integer, which is odd and lies within 2^24 of 0. */
export const UNIFORM_BITS = 24;
/** The segments of the table for each factor of two in the probability. */
const SEGMENTS = 32;
/** The fraction bits of the table's distances, which are at most 6.4 and so fit a word. */
const TABLE_BITS = 29;

/** The words of normalTable, once they have been computed. */
const table: { words: Uint32Array | undefined } = { words: undefined };

/**
 * Returns the inverse of the normal distribution, as rows of four words (a, b, c, power) for
 * segments of the tail probability p in (0, 1/2). The distance from the mean is a - t * (b - t *
 * c), within 2^-21, where t goes from 0 to 1 within the segment. Row 32 (31 - k) + j is part j of
 * 32 of [2^-(k + 2), 2^-(k + 1)). A tail times the row's power is t, with the bits above it shifted
 * out.
 */
export function normalTable(): Uint32Array {
  table.words ??= makeTable();
  return table.words;
}

function makeTable(): Uint32Array {
  const words = new Uint32Array(32 * SEGMENTS * 4);
  const unit = 2 ** TABLE_BITS;
  let outer = 0;
  for (let k = 0; k < 32; k++) {
    const low = pow64(2, -(k + 2));
    let start = tailDistance(low, outer);
    outer = start;
    for (let j = 0; j < SEGMENTS; j++) {
      const at = (part: number) => tailDistance(low * (1 + (j + part) / SEGMENTS), start);
      const [middle, end] = [at(0.5), at(1)];
      // The segment is the parabola through three points, which bends upward.
      const bend = 2 * (start + end - 2 * middle);
      const slope = start - end + bend;
      const power = k + 6 < 32 ? pow64(2, k + 6) : 0;
      words.set(
        [start * unit + 0.5, slope * unit + 0.5, bend * unit + 0.5, power],
        ((31 - k) * SEGMENTS + j) * 4,
      );
      start = end;
    }
  }
  return words;
}

/**
 * Returns the distance z >= 0 from the mean that a normal number exceeds on one side with
 * probability p.
 */
function tailDistance(p: number, near: number): number {
  let z = near;
  // This is Newton's method. The tail is convex, so all steps but the first go up.
  for (let i = 0; i < 20; i++) {
    const step = (normalTail(z) - p) / density(z);
    z += step;
    if (Math.abs(step) < 1e-11) {
      break;
    }
  }
  return z;
}

/** Returns the probability that a normal number exceeds z >= 0. */
export function normalTail(z: number): number {
  if (z < 3) {
    // The tail is 1/2 minus the density times z + z^3 / 3 + z^5 / 15 + ..., whose terms have one
    // sign.
    let [term, sum] = [z, z];
    for (let n = 3; term > 1e-18 * sum; n += 2) {
      term *= (z * z) / n;
      sum += term;
    }
    return 0.5 - density(z) * sum;
  }
  // Farther out Laplace's continued fraction converges fast.
  let rest = z;
  for (let n = 40; n >= 1; n--) {
    rest = z + n / rest;
  }
  return density(z) / rest;
}

function density(z: number): number {
  return exponential((-z * z) / 2) / Math.sqrt(2 * Math.PI);
}

/** Returns e^x for x <= 0, by the series at x / 64. */
function exponential(x: number): number {
  const small = x / 64;
  let [term, sum] = [1, 1];
  for (let n = 1; n < 30; n++) {
    term *= small / n;
    sum += term;
  }
  for (let i = 0; i < 6; i++) {
    sum *= sum;
  }
  return sum;
}

/** Returns the integer n that the kernel `random` makes of a random word; see ElementwiseCalls. */
export function randomInteger(
  word: number,
  call: { readonly kind: 'uniform' | 'normal'; readonly first: number; readonly range: number },
  words: Uint32Array,
): number {
  if (call.kind === 'uniform') {
    return 2 * (word >>> 8) + 1 - 2 ** UNIFORM_BITS;
  }
  const place = call.range === 0 ? word : (call.first + highWord(word, call.range)) >>> 0;
  const isUpper = place >= 2 ** 31;
  // The tail, times 2^-33, is the probability of lying farther out. It is odd, so never 0.
  const tail = (((isUpper ? ~place : place) << 1) | 1) >>> 0;
  const octave = Math.clz32(tail);
  // There are two shifts, because a shift by 32 would do nothing. The leading one falls off.
  const part = ((tail << octave) << 1) >>> 0;
  const at = ((31 - octave) * SEGMENTS + (part >>> 27)) * 4;
  const t = Math.imul(tail, words[at + 3]!) >>> 0;
  const inner = words[at + 1]! - highWord(t, words[at + 2]!);
  const distance = (words[at]! - highWord(t, inner) + 2 ** (TABLE_BITS - NORMAL_BITS - 1)) >>> 0;
  const integer = distance >>> (TABLE_BITS - NORMAL_BITS);
  return isUpper ? integer : 0 - integer;
}

/**
 * Returns the upper 32 bits of a 64-bit product. It uses only integers, in 16-bit halves, which
 * engines compile well.
 */
export function highWord(a: number, b: number): number {
  const aLow = a & 0xffff;
  const aHigh = a >>> 16;
  const bLow = b & 0xffff;
  const bHigh = b >>> 16;
  // None of these sums reaches 2^32, so their low 32 bits are the whole sums.
  const middle = (Math.imul(aHigh, bLow) + (Math.imul(aLow, bLow) >>> 16)) | 0;
  const carry = (Math.imul(aLow, bHigh) + (middle & 0xffff)) | 0;
  return (Math.imul(aHigh, bHigh) + (middle >>> 16) + (carry >>> 16)) >>> 0;
}
