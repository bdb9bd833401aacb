// The float64 twin of dropout has its own Philox4x32-10 (Salmon et al., 2011), in 16-bit limbs.

import type { TwinArray } from './twin-array.js';

/** A mask: its probability, its key, and the global index of the first element. */
export interface TwinMask {
  readonly p: number;
  readonly key0: number;
  readonly key1: number;
  readonly counterOffset: number;
}

export function dropoutTwin(x: TwinArray, mask: TwinMask): TwinArray {
  const threshold = Math.floor(mask.p * 2 ** 32);
  const data = x.data.map((value, i) => {
    const element = mask.counterOffset + i;
    const word = philoxTwin(Math.floor(element / 4), mask.key0, mask.key1)[element % 4]!;
    return word >= threshold ? value / (1 - mask.p) : 0;
  });
  return { shape: x.shape, data };
}

/** Returns the four random words of a block number below 2^53. */
function philoxTwin(block: number, key0: number, key1: number): number[] {
  let counter = [block % 2 ** 32, Math.floor(block / 2 ** 32), 0, 0];
  for (let round = 0; round < 10; round++) {
    const first = timesWord(0xd2511f53, counter[0]!);
    const second = timesWord(0xcd9e8d57, counter[2]!);
    const roundKey0 = (key0 + round * 0x9e3779b9) % 2 ** 32;
    const roundKey1 = (key1 + round * 0xbb67ae85) % 2 ** 32;
    counter = [
      (second.high ^ counter[1]! ^ roundKey0) >>> 0,
      second.low,
      (first.high ^ counter[3]! ^ roundKey1) >>> 0,
      first.low,
    ];
  }
  return counter;
}

function timesWord(a: number, b: number): { readonly high: number; readonly low: number } {
  const [a1, a0, b1, b0] = [a >>> 16, a & 0xffff, b >>> 16, b & 0xffff];
  const bottom = a0 * b0;
  const middle = a1 * b0 + a0 * b1 + Math.floor(bottom / 2 ** 16); // below 2^34: exact
  const low = (middle % 2 ** 16) * 2 ** 16 + (bottom % 2 ** 16);
  return { high: (a1 * b1 + Math.floor(middle / 2 ** 16)) % 2 ** 32, low };
}
