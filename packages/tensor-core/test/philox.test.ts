import { describe, expect, it } from 'vitest';
import { philox } from '../src/philox.js';

describe('philox', () => {
  // Known answers published with the paper's own implementation (Random123, kat_vectors).
  it('gives the published words for a zero key and counter', () => {
    const words = new Uint32Array(4);
    philox(0, 0, 0, words);
    expect([...words]).toEqual([0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
  });

  it('agrees with 64-bit integer arithmetic over large counters and keys', () => {
    const words = new Uint32Array(4);
    for (const [block, key0, key1] of [
      [2 ** 40 + 12345, 0xdeadbeef, 0x12345678],
      [2 ** 52 + 7, 0xffffffff, 0xffffffff],
      [3, 1, 0x80000000],
    ] as const) {
      philox(block, key0, key1, words);
      expect([...words]).toEqual(bigPhilox(BigInt(block), BigInt(key0), BigInt(key1)));
    }
  });
});

function bigPhilox(block: bigint, key0: bigint, key1: bigint): number[] {
  const mask = 0xffffffffn;
  let counter = [block & mask, block >> 32n, 0n, 0n] as [bigint, bigint, bigint, bigint];
  let [k0, k1] = [key0, key1];
  for (let round = 0; round < 10; round++) {
    const a = 0xd2511f53n * counter[0];
    const b = 0xcd9e8d57n * counter[2];
    counter = [(b >> 32n) ^ counter[1] ^ k0, b & mask, (a >> 32n) ^ counter[3] ^ k1, a & mask];
    k0 = (k0 + 0x9e3779b9n) & mask;
    k1 = (k1 + 0xbb67ae85n) & mask;
  }
  return counter.map(Number);
}
