// The keys of random ops are equal where ranks, micro-batches and recomputation must agree, and
// different everywhere else.

import { Device, dropout, Random } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

function keysOf(random: Random, count: number): string[] {
  return Array.from({ length: count }, () => {
    const { key0, key1 } = random.nextKey();
    return `${key0},${key1}`;
  });
}

describe('keys', () => {
  test('are a function of seed, step and call alone, not of the rows', () => {
    fc.assert(
      fc.property(fc.maxSafeInteger(), fc.nat(), fc.nat(), (seed, step, rowOffset) => {
        const [a, b] = [new Random(seed), new Random(seed)];
        keysOf(a, 3); // begin makes the generator forget these.
        a.begin({ step, rowOffset });
        b.begin({ step, rowOffset: 0 });
        expect(keysOf(a, 4)).toEqual(keysOf(b, 4));
        expect(a.rowOffset).toBe(rowOffset);
      }),
    );
  });

  test('differ between calls, steps and seeds, those above 2^32 included', () => {
    const seeds = [0, 1, 2, -1, 2 ** 32, 2 ** 32 + 1, Number.MAX_SAFE_INTEGER];
    const keys = seeds.flatMap((seed) => {
      const random = new Random(seed);
      return Array.from({ length: 50 }, (_, step) => {
        random.begin({ step, rowOffset: 0 });
        return keysOf(random, 50);
      }).flat();
    });
    expect(new Set(keys).size).toBe(keys.length);
  });

  test('are 32-bit words whose bits are about as often 1 as 0', () => {
    const random = new Random(3);
    const ones = new Array<number>(32).fill(0);
    const count = 2000;
    for (let i = 0; i < count; i++) {
      const { key0, key1 } = random.nextKey();
      for (const key of [key0, key1]) {
        expect(key).toBe(key >>> 0);
      }
      for (let bit = 0; bit < 32; bit++) {
        ones[bit]! += (key1 >>> bit) & 1;
      }
    }
    // The limit is six standard deviations of a fair coin thrown 2000 times, 6 * 0.5 / sqrt(2000).
    for (const sum of ones) {
      expect(Math.abs(sum / count - 0.5)).toBeLessThan(0.067);
    }
  });

  test('come again after restore, as a recomputation needs', () => {
    const random = new Random(5);
    random.begin({ step: 2, rowOffset: 3 });
    random.nextKey();
    const state = random.state();
    const first = keysOf(random, 3);
    random.begin({ step: 9, rowOffset: 9 });
    random.restore(state);
    expect(keysOf(random, 3)).toEqual(first);
    expect(random.state()).toEqual({ step: 2, rowOffset: 3, callCount: 4, stream: 0 });
  });
});

describe('streams', () => {
  const maskKeysOf = (random: Random, count: number): string[] =>
    Array.from({ length: count }, () => Object.values(random.nextMaskKey()).join());

  /** Makes the generator of a device whose wrapper is rank `stream`. */
  const separated = (stream: number) => {
    const random = new Random(6);
    random.separate(stream);
    return random;
  };

  test('have mask keys of their own, of which the first are those of a device without any', () => {
    const keys = Array.from({ length: 64 }, (_, stream) => maskKeysOf(separated(stream), 50));
    expect(new Set(keys.flat()).size).toBe(64 * 50);
    expect(keys[0]).toEqual(maskKeysOf(new Random(6), 50));
    expect(keys[0]).toEqual(keysOf(new Random(6), 50));
  });

  test('leave the keys of initial parameters equal on all ranks', () => {
    expect(keysOf(separated(3), 4)).toEqual(keysOf(new Random(6), 4));
  });

  test('end where a step is begun, for good', () => {
    const [begun, plain] = [separated(3), new Random(6)];
    for (const random of [begun, plain]) {
      random.begin({ step: 1, rowOffset: 0 });
    }
    begun.separate(3);
    expect(maskKeysOf(begun, 4)).toEqual(maskKeysOf(plain, 4));
  });

  test('come again with the state of a forward, also when a step was begun since', () => {
    const random = separated(3);
    const state = random.state();
    const first = maskKeysOf(random, 3);
    random.begin({ step: 9, rowOffset: 9 });
    const after = random.state();
    random.restore(state);
    expect(maskKeysOf(random, 3)).toEqual(first);
    random.restore(after);
    expect(random.state()).toEqual({ step: 9, rowOffset: 9, callCount: 0, stream: 0 });
  });
});

describe('masks', () => {
  const device = new Device(createReferenceBackend(), { seed: 11 });
  const maskOf = (p: number) =>
    device.scope(async () => [...(await dropout(device.full([64, 64], 1), p).toArray())]);

  test('drop the part asked for, and scale the rest to keep the mean', async () => {
    for (const p of [0.1, 0.5, 0.9]) {
      const mask = await maskOf(p);
      const dropped = mask.filter((value) => value === 0).length / mask.length;
      // The limit is five standard deviations of 4096 draws.
      expect(Math.abs(dropped - p)).toBeLessThan(5 * Math.sqrt((p * (1 - p)) / 4096));
      expect(new Set(mask)).toEqual(new Set([0, Math.fround(1 / (1 - p))]));
    }
  });

  test('masks of two calls are independent, of the same call and step equal', async () => {
    device.random.begin({ step: 4, rowOffset: 0 });
    const [first, second] = [await maskOf(0.5), await maskOf(0.5)];
    const agreement = first.filter((value, i) => value === second[i]).length / first.length;
    expect(Math.abs(agreement - 0.5)).toBeLessThan(5 * Math.sqrt(0.25 / 4096));
    device.random.begin({ step: 4, rowOffset: 0 });
    expect(await maskOf(0.5)).toEqual(first);
  });

  test('p of 0 passes the tensor through and takes no key', () => {
    const before = device.random.state();
    const x = device.full([3], 1);
    expect(dropout(x, 0)).toBe(x);
    expect(device.random.state()).toEqual(before);
  });
});
