// Blocks are held against ggml's own library. Where there is none for the platform, what remains
// are the numbers that a type can't hold, and codes that come back as they were.

import {
  BLOCK_SIZES,
  BLOCK_TYPES,
  BlockNumberError,
  type BlockType,
  blocksByteLength,
  decodeBlocks,
  encodeBlocks,
} from '@shardweave/dtypes/blocks';
import { describe, expect, it } from 'vitest';
import {
  errorBesideGgml,
  firstUnlikeGgml,
  ggmlEncode,
  noGgml,
} from '../../../tooling/test-kit/ggml.ts';
import {
  DISTRIBUTIONS,
  randomBlocks,
  randomNumbers,
} from '../../../tooling/test-kit/random-blocks.ts';

const SEED = 37;
const distributions = Object.keys(DISTRIBUTIONS) as (keyof typeof DISTRIBUTIONS)[];
const suffix = noGgml === undefined ? '' : ` (${noGgml})`;

describe.skipIf(noGgml !== undefined)(`ggml's blocks${suffix}`, () => {
  it.each(BLOCK_TYPES)('%s: decoded to the same bits', (type) => {
    const blocks = 1024;
    const bytes = randomBlocks(type, blocks, SEED);
    expect(firstUnlikeGgml(type, bytes, blocks * BLOCK_SIZES[type].elements)).toBe(-1);
  });

  // Compilers for other chips may fuse a product and a sum, which rounds once where this rounds
  // twice: single bytes would differ.
  const isFused = process.arch !== 'x64';
  it.skipIf(isFused).each(['q8_0', 'q4_0', 'q4_1', 'q5_0', 'q5_1'] as const)(
    `%s: encoded to the same bytes${isFused ? ' (fused products and sums)' : ''}`,
    (type) => {
      const values = distributions.map((one) => randomNumbers(one, { count: 8192, seed: SEED }));
      for (const some of [...values, hardNumbers()]) {
        expect(Buffer.compare(encodeBlocks(type, some), ggmlEncode(type, some))).toBe(0);
      }
    },
  );

  it.each(['q4_K', 'q5_K', 'q6_K'] as const)('%s: encoded with no larger error', (type) => {
    for (const one of distributions) {
      const values = randomNumbers(one, { count: 16_384, seed: SEED });
      expect(errorBesideGgml(type, values), one).toBeLessThan(1.02);
    }
  });
});

describe.each(BLOCK_TYPES)('%s', (type) => {
  const { elements } = BLOCK_SIZES[type];

  it('holds the largest numbers that it takes, and refuses others', () => {
    const error = errorFrom(() => encodeBlocks(type, new Float32Array(elements).fill(-Infinity)));
    expect(error).toBeInstanceOf(BlockNumberError);
    expect(error.message).toBe(
      `encodeBlocks: expected numbers below ${error.below}, as ${type} holds them, got -Infinity.`,
    );
    // This is the largest f32 below the bound.
    const largest = new Float32Array(1);
    new Uint32Array(largest.buffer)[0] =
      new Uint32Array(Float32Array.of(error.below).buffer)[0]! - 1;
    for (const sign of [1, -1]) {
      // Half of all numbers are at one end, so that regression finds a line beyond it.
      const values = new Float32Array(elements).map((_, i) =>
        i % 2 === 0 ? sign * largest[0]! : Math.sin(i * i) * largest[0]!,
      );
      const decoded = new Float32Array(elements);
      decodeBlocks(type, encodeBlocks(type, values), decoded);
      const off = decoded.map((value, i) => Math.abs(value - values[i]!) / error.below);
      // This is a whole step of 15 over twice the bound.
      expect(Math.max(...off)).toBeLessThan(2 / 15);
    }
    for (const wrong of [error.below, -error.below, Number.NaN]) {
      const values = new Float32Array(2 * elements);
      values[elements + 3] = wrong;
      const { found } = errorFrom(() => encodeBlocks(type, values));
      expect(found).toBe(wrong);
    }
  });

  it('holds zeros, equal numbers and numbers too small for a scale', () => {
    for (const value of [0, -0, 0.75, -0.75, 2 ** -30, 2 ** -149]) {
      const values = new Float32Array(elements).fill(value);
      const decoded = new Float32Array(elements);
      decodeBlocks(type, encodeBlocks(type, values), decoded);
      const off = decoded.map((one) => Math.abs(one - value));
      // A scale in f16 has 11 bits, the smallest 2^-24.
      expect(Math.max(...off)).toBeLessThanOrEqual(Math.abs(value) * 2 ** -8 + 2 ** -24);
    }
  });

  it('takes whole blocks alone', () => {
    expect(() => encodeBlocks(type, new Float32Array(elements + 1))).toThrow(RangeError);
    expect(() => decodeBlocks(type, new Uint8Array(1), new Float32Array(elements))).toThrow(
      /expected \d+ bytes for \d+ numbers/,
    );
    expect(encodeBlocks(type, new Float32Array(0))).toEqual(new Uint8Array(0));
  });
});

it('an unknown type is refused with the known ones', () => {
  const type = 'q3_K' as BlockType;
  expect(() => blocksByteLength(type, 256)).toThrow(/q8_0, .*q6_K, got 'q3_K'/);
  expect(() => encodeBlocks(type, new Float32Array(256))).toThrow(RangeError);
});

it('q8_0 rounds halves away from zero', () => {
  const values = new Float32Array(32);
  values.set([127, -0.5, 0.5, 1.5, -1.5, 2.49, -126.6]);
  const codes = new Int8Array(encodeBlocks('q8_0', values).buffer, 2);
  expect([...codes.slice(0, 7)]).toEqual([127, -1, 1, 2, -2, 2, -127]);
});

/** Blocks of equal, tiny, subnormal and tied numbers. */
function hardNumbers(): Float32Array {
  const rows: ((i: number) => number)[] = [
    () => 0,
    () => -1,
    () => 3,
    (i) => (i % 2 === 0 ? 1 : -1),
    (i) => (i - 16) / 2,
    (i) => (i - 15) * 2 ** -26,
    (i) => i * 2 ** -14,
    (i) => (i === 31 ? -60_000 : 1),
  ];
  return Float32Array.from({ length: rows.length * 32 }, (_, i) => rows[i >> 5]!(i & 31));
}

function errorFrom(act: () => unknown): BlockNumberError {
  try {
    act();
  } catch (error) {
    return error as BlockNumberError;
  }
  throw new Error('expected a BlockNumberError, got none');
}
