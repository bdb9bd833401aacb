// These are products larger than each block of the CPU device: of rows, of columns, of k, and of
// the columns whose panels a thread keeps. They are compared with float64, and must have equal bits
// on any number of threads.

import { fromF32Array, toF32Array } from '@shardweave/dtypes';
import { type Backend, cast, Device, matmul } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { afterAll, describe, expect, it } from 'vitest';
import { expectProduct, type ProductShape, runProduct } from './support/cpu-products.js';

const backends = new Map<number, Promise<Backend>>();
const open = (threads: number) => {
  const opened = backends.get(threads) ?? createCpuBackend({ threads });
  backends.set(threads, opened);
  return opened;
};
afterAll(async () => {
  for (const backend of backends.values()) {
    await (await backend).dispose();
  }
});

const SHAPES: readonly (readonly [
  name: string,
  Omit<ProductShape, 'transposeA' | 'transposeB'>,
])[] = [
  ['rows beyond a block, an odd k', { m: 271, n: 67, k: 129, batches: 1 }],
  ['columns beyond those at once', { m: 100, n: 2115, k: 65, batches: 1 }],
  ['panels kept for several k', { m: 415, n: 200, k: 700, batches: 1 }],
  ['fewer columns at once, for a long k', { m: 200, n: 331, k: 2300, batches: 1 }],
  ['a k whose panels are not kept', { m: 150, n: 530, k: 4500, batches: 1 }],
  ['one batch after the other', { m: 64, n: 40, k: 33, batches: 9 }],
  ['fewer rows than a tile', { m: 5, n: 90, k: 300, batches: 2 }],
  ['few rows of a long, odd k', { m: 3, n: 70, k: 4103, batches: 1 }],
  ['few rows of columns beyond those at once', { m: 2, n: 8300, k: 70, batches: 1 }],
  ['few rows of a k beyond what is kept of them', { m: 3, n: 9, k: 65_613, batches: 1 }],
  ['one row', { m: 1, n: 1030, k: 2115, batches: 2 }],
  ['one row of a k beyond what is kept of it', { m: 1, n: 9, k: 65_613, batches: 1 }],
];

/** Both halves are read by one function, and A is transposed as in f32. */
const LONG_HALVES = [
  ['bf16', true, true],
  ['f16', false, true],
  ['f16', false, false],
] as const;

describe.each(SHAPES)('%s', (_, extent) => {
  it.each([
    ['f32', false, false],
    ['f32', false, true],
    ['f32', true, false],
    ['bf16', false, false],
    ['bf16', false, true],
    ...(process.env.SHARDWEAVE_LONG === '1' ? LONG_HALVES : []),
  ] as const)('%s, transposed %s and %s', async (dtype, transposeA, transposeB) => {
    const shape = { ...extent, transposeA, transposeB };
    await expectProduct(await Promise.all([open(1), open(3)]), dtype, shape);
  });
});

it.each(['f16', 'bf16'] as const)('one row reads each number of %s as it is', async (dtype) => {
  const [rows, columns] = [4096, 16];
  const bits = Uint8Array.from(
    new Uint8Array(Uint16Array.from({ length: 65_536 }, (_, i) => i).buffer),
  );
  const device = new Device(await open(1));
  for (let column = 0; column < columns; column++) {
    const row = new Float32Array(columns);
    row[column] = 1;
    const x = device.tensor(row, [1, columns]);
    const weight = device.empty([rows, columns], { dtype });
    device.backend.write(weight.view().buffer, 0, bits);
    const got = await matmul(x, weight, { transposeB: true }).toArray();
    const numbers = await cast(weight, 'f32').toArray();
    const expected = Array.from(got, (_, i) => {
      const own = numbers.subarray(i * columns, (i + 1) * columns);
      return own.every(Number.isFinite) ? own[column]! + 0 : Number.NaN; // 0 * Infinity is NaN
    });
    expect(expected.some(Number.isNaN)).toBe(true);
    expect(Array.from(got)).toEqual(expected);
  }
  device.dispose();
});

// With rows of ones every result is k, so a result stands out if another use of scratch overwrote
// it.
it.each([
  ['f32', false],
  ['bf16', false],
  ['f32', true],
  ['bf16', true],
] as const)(
  'few rows without a bias keep all their sums: %s, transposed %s',
  async (dtype, transposeB) => {
    for (const [m, n, k] of [
      [1, 2048, 4],
      [2, 1500, 7],
      [5, 9000, 9],
      [3, 40, 5000],
    ] as const) {
      const extent = { m, n, k, transposeA: false, transposeB, batches: 1 };
      const [a, b] = [m * k, k * n].map((size) => new Float32Array(size).fill(1));
      const found = await runProduct(await open(1), dtype, extent, { a: a!, b: b! });
      const wanted = toF32Array(fromF32Array(new Float32Array([k]), dtype), dtype)[0];
      expect(new Set(toF32Array(found, dtype)), `${m} x ${n} x ${k}`).toEqual(new Set([wanted]));
    }
  },
);

// The panels of this k would take 60 MB and reach far beyond the scratch of all threads, into b
// itself.
it('packs no more of a very long k than there is room for', async () => {
  const extent = { m: 8, n: 256, k: 60_000, transposeA: false, transposeB: false, batches: 1 };
  const a = new Float32Array(extent.m * extent.k).fill(1);
  // The values are 0 to 4 in turn.
  const b = Float32Array.from({ length: extent.k * extent.n }, (_, i) => i % 5);
  const bias = new Float32Array(extent.n);
  for (const threads of [1, 3]) {
    const found = await runProduct(await open(threads), 'f32', extent, { a, b, bias });
    const sums = new Float32Array(found.buffer, found.byteOffset, extent.m * extent.n);
    expect(new Set(sums)).toEqual(new Set([2 * extent.k]));
  }
});
