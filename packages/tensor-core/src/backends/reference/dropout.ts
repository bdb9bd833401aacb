// Dropout by the counter-based generator Philox4x32-10 (Salmon et al., 2011, "Parallel random
// numbers: as easy as 1, 2, 3"). Whether element e is kept depends only on the key and e.

import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import { highWord } from '../../random-recipe.js';
import type { Open } from './elements.js';

type Quad = readonly [number, number, number, number];

const ROUNDS = 10;
/** The multipliers and key increments of the paper's table 2. */
const MULTIPLIERS = [0xd2511f53, 0xcd9e8d57] as const;
const WEYL = [0x9e3779b9, 0xbb67ae85] as const;

/** A mask: its probability, its key, and the generator's number of element 0. */
export interface Mask {
  readonly p: number;
  readonly key0: number;
  readonly key1: number;
  readonly counterOffset: number;
}

export function dropout(call: KernelCalls['dropout'], open: Open): void {
  const x = open(call.x);
  const out = open(call.out);
  const isKept = keptBy(call);
  for (let i = 0; i < out.size; i++) {
    out.set(i, isKept(i) ? x.get(i) / (1 - call.p) : 0);
  }
}

/** Returns whether a mask keeps an element. */
export function keptBy({ p, key0, key1, counterOffset }: Mask): (i: number) => boolean {
  const wordAt = wordsOf(key0, key1);
  const threshold = Math.floor(p * 2 ** 32);
  return (i) => wordAt(counterOffset + i) >= threshold;
}

/** Returns the random word of an element under a key. Four neighbors cost what one does. */
export function wordsOf(key0: number, key1: number): (element: number) => number {
  let drawn = -1;
  let words: Quad = [0, 0, 0, 0];
  return (element) => {
    const block = Math.floor(element / 4);
    if (block !== drawn) {
      words = philox([block % 2 ** 32, Math.floor(block / 2 ** 32), 0, 0], [key0, key1]);
      drawn = block;
    }
    return words[element % 4]!;
  };
}

/** Returns the four random words of a counter and a key, all of 32 bits. */
export function philox(counter: Quad, key: readonly [number, number]): Quad {
  let [c0, c1, c2, c3] = counter;
  let [k0, k1] = key;
  for (let round = 0; round < ROUNDS; round++) {
    const high0 = highWord(MULTIPLIERS[0], c0);
    const high1 = highWord(MULTIPLIERS[1], c2);
    const low0 = Math.imul(MULTIPLIERS[0], c0) >>> 0;
    c0 = (high1 ^ c1 ^ k0) >>> 0;
    c1 = Math.imul(MULTIPLIERS[1], c2) >>> 0;
    c2 = (high0 ^ c3 ^ k1) >>> 0;
    c3 = low0;
    k0 = (k0 + WEYL[0]) >>> 0;
    k1 = (k1 + WEYL[1]) >>> 0;
  }
  return [c0, c1, c2, c3];
}
