// Dropout by the counter-based generator Philox4x32-10 (Salmon et al., 2011, "Parallel random
// numbers: as easy as 1, 2, 3"). Whether element e is kept depends only on the key and e.

import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
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
  for (let i = 0; i < out.size; i++) {
    out.set(i, isKept(call, i) ? x.get(i) / (1 - call.p) : 0);
  }
}

export function isKept({ p, key0, key1, counterOffset }: Mask, i: number): boolean {
  const element = counterOffset + i;
  const block = Math.floor(element / 4);
  const counter: Quad = [block % 2 ** 32, Math.floor(block / 2 ** 32), 0, 0];
  return philox(counter, [key0, key1])[element % 4]! >= Math.floor(p * 2 ** 32);
}

/** Returns the four random words of a counter and a key, all of 32 bits. */
export function philox(counter: Quad, key: readonly [number, number]): Quad {
  let [c0, c1, c2, c3] = counter;
  let [k0, k1] = key;
  for (let round = 0; round < ROUNDS; round++) {
    const [high0, low0] = multiply(MULTIPLIERS[0], c0);
    const [high1, low1] = multiply(MULTIPLIERS[1], c2);
    [c0, c1, c2, c3] = [(high1 ^ c1 ^ k0) >>> 0, low1, (high0 ^ c3 ^ k1) >>> 0, low0];
    k0 = (k0 + WEYL[0]) >>> 0;
    k1 = (k1 + WEYL[1]) >>> 0;
  }
  return [c0, c1, c2, c3];
}

/** Returns the high and the low word of a 64-bit product. */
function multiply(a: number, b: number): [high: number, low: number] {
  const product = BigInt(a) * BigInt(b);
  return [Number(product >> 32n), Number(product & 0xffffffffn)];
}
