// The counter-based generator Philox4x32-10 on the host (Salmon et al., 2011, "Parallel random
// numbers: as easy as 1, 2, 3"): four random words are a function of a key and a counter alone.

const ROUNDS = 10;
/** The multipliers and key increments of the paper's table 2. */
const MULTIPLIER_0 = 0xd2511f53;
const MULTIPLIER_1 = 0xcd9e8d57;
const WEYL_0 = 0x9e3779b9;
const WEYL_1 = 0xbb67ae85;

/**
 * The four words of block `block` under a 64-bit key, written to out[0..3].
 * @param block a whole number below 2^53; the counter's upper two words are 0
 */
export function philox(block: number, key0: number, key1: number, out: Uint32Array): void {
  let c0 = block | 0;
  let c1 = Math.floor(block / 2 ** 32) | 0;
  let c2 = 0;
  let c3 = 0;
  let k0 = key0 | 0;
  let k1 = key1 | 0;
  for (let round = 0; round < ROUNDS; round++) {
    const high0 = highWord(MULTIPLIER_0, c0);
    const high1 = highWord(MULTIPLIER_1, c2);
    const low0 = Math.imul(MULTIPLIER_0, c0);
    const low1 = Math.imul(MULTIPLIER_1, c2);
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 = (k0 + WEYL_0) | 0;
    k1 = (k1 + WEYL_1) | 0;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

/** The upper 32 bits of a 64-bit product, from 16-bit halves: integers alone, which engines compile well. */
export function highWord(a: number, b: number): number {
  const aLow = a & 0xffff;
  const aHigh = a >>> 16;
  const bLow = b & 0xffff;
  const bHigh = b >>> 16;
  // None of these sums passes 2^32, so that their low 32 bits are all of them.
  const middle = (Math.imul(aHigh, bLow) + (Math.imul(aLow, bLow) >>> 16)) | 0;
  const carry = (Math.imul(aLow, bHigh) + (middle & 0xffff)) | 0;
  return (Math.imul(aHigh, bHigh) + (middle >>> 16) + (carry >>> 16)) >>> 0;
}
