// Random numbers by integers and one f32 product, so that all devices, threads and splits give
// equal bits: the logarithm of a GPU is not that of a CPU, and neither are those of two JavaScript
// engines. What is made here in floating point uses only + - * / and roots, which IEEE 754 rounds
// everywhere alike.

/**
 * A number is an integer of at most 24 bits, which f32 holds, times a scale. Bits behind a normal's
 * point.
 */
export const NORMAL_BITS = 21;
/** A uniform integer is odd and lies within 2^24 of 0. */
export const UNIFORM_BITS = 24;
/** Segments of a factor of two in the probability. */
export const SEGMENTS = 32;
/** Bits behind the point of the table's numbers: 6.4 of them fit a word. */
const TABLE_BITS = 29;

/** Words of the inverse of the normal distribution; see normalTable. */
const table: { words: Uint32Array | undefined } = { words: undefined };

/**
 * Rows of four words (a, b, c, power) for segments of the tail probability p in (0, 1/2): the
 * distance from the mean is a - t * (b - t * c), t from 0 to 1 within the segment, within 2^-21.
 * Row 32 (31 - k) + j is the j-th part of 32 of [2^-(k + 2), 2^-(k + 1)); a tail times its power is
 * t, what precedes it shifted out.
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
    const low = 2 ** -(k + 2);
    let start = tailDistance(low, outer);
    outer = start;
    for (let j = 0; j < SEGMENTS; j++) {
      const at = (part: number) => tailDistance(low * (1 + (j + part) / SEGMENTS), start);
      const [middle, end] = [at(0.5), at(1)];
      // The parabola through three points; it bends upward.
      const bend = 2 * (start + end - 2 * middle);
      const slope = start - end + bend;
      const power = k + 6 < 32 ? 2 ** (k + 6) : 0;
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
 * The distance z >= 0 from the mean beyond which a normal number lies with probability p on one
 * side.
 */
function tailDistance(p: number, near: number): number {
  let z = near;
  // Newton's; the tail is convex, so that all steps but the first go up.
  for (let i = 0; i < 20; i++) {
    const step = (normalTail(z) - p) / density(z);
    z += step;
    if (Math.abs(step) < 1e-11) {
      break;
    }
  }
  return z;
}

/** Probability that a normal number exceeds z >= 0. */
export function normalTail(z: number): number {
  if (z < 3) {
    // 1/2 minus density times z + z^3 / 3 + z^5 / 15 + ..., whose terms have one sign.
    let [term, sum] = [z, z];
    for (let n = 3; term > 1e-18 * sum; n += 2) {
      term *= (z * z) / n;
      sum += term;
    }
    return 0.5 - density(z) * sum;
  }
  // Laplace's continued fraction.
  let rest = z;
  for (let n = 40; n >= 1; n--) {
    rest = z + n / rest;
  }
  return density(z) / rest;
}

function density(z: number): number {
  return exponential((-z * z) / 2) / Math.sqrt(2 * Math.PI);
}

/** e^x for x <= 0, by its series on a sixty-fourth of x. */
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

/** What the kernel makes of a random word: see `random` in backend.ts. */
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
  // An odd multiple of 2^-33: the probability of lying farther out.
  const tail = (((isUpper ? ~place : place) << 1) | 1) >>> 0;
  const octave = Math.clz32(tail);
  // Twice, for a shift by 32 is none; the leading one falls off.
  const part = ((tail << octave) << 1) >>> 0;
  const at = ((31 - octave) * SEGMENTS + (part >>> 27)) * 4;
  const t = Math.imul(tail, words[at + 3]!) >>> 0;
  const inner = words[at + 1]! - highWord(t, words[at + 2]!);
  const distance = (words[at]! - highWord(t, inner) + 2 ** (TABLE_BITS - NORMAL_BITS - 1)) >>> 0;
  const integer = distance >>> (TABLE_BITS - NORMAL_BITS);
  return isUpper ? integer : 0 - integer;
}

/**
 * The upper 32 bits of a 64-bit product, from 16-bit halves: integers alone, which engines compile
 * well.
 */
function highWord(a: number, b: number): number {
  const aLow = a & 0xffff;
  const aHigh = a >>> 16;
  const bLow = b & 0xffff;
  const bHigh = b >>> 16;
  // None of these sums passes 2^32, so that their low 32 bits are all of them.
  const middle = (Math.imul(aHigh, bLow) + (Math.imul(aLow, bLow) >>> 16)) | 0;
  const carry = (Math.imul(aLow, bHigh) + (middle & 0xffff)) | 0;
  return (Math.imul(aHigh, bHigh) + (middle >>> 16) + (carry >>> 16)) >>> 0;
}
