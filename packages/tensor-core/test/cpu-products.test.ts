// These are products larger than each block of the CPU device: of rows, of columns, of k, and of
// the columns whose panels a thread keeps. They are compared with float64, and must have equal bits
// on any number of threads.

import type { DType } from '@shardweave/dtypes';
import { byteSize, fromF32Array, toF32Array } from '@shardweave/dtypes';
import type { Backend } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { afterAll, describe, expect, it } from 'vitest';
import { makeView, randomFloats } from './support/cpu-device.js';
import { product } from './support/webgpu-kit.js';

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

interface Shape {
  readonly m: number;
  readonly n: number;
  readonly k: number;
  readonly transposeA: boolean;
  readonly transposeB: boolean;
  readonly batches: number;
}

const SHAPES: readonly (readonly [name: string, Omit<Shape, 'transposeA' | 'transposeB'>])[] = [
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
];

describe.each(SHAPES)('%s', (_, extent) => {
  it.each([
    ['f32', false, false],
    ['f32', false, true],
    ['f32', true, false],
    ['bf16', true, true],
    ['bf16', false, false],
    ['bf16', false, true],
    ['f16', false, true],
    ['f16', false, false],
  ] as const)('%s, transposed %s and %s', async (dtype, transposeA, transposeB) => {
    const shape = { ...extent, transposeA, transposeB };
    const { m, n, k, batches } = shape;
    const a = randomFloats(m * k * batches, 1);
    const b = randomFloats(k * n * batches, 2);
    const bias = randomFloats(n, 3);
    const one = await run(await open(1), dtype, shape, { a, b, bias });
    const three = await run(await open(3), dtype, shape, { a, b, bias });
    // toEqual would take minutes to print the difference of two large arrays.
    expect(Buffer.compare(three, one)).toBe(0);
    const stored = toF32Array(one, dtype);
    const read = (values: Float32Array) => toF32Array(fromF32Array(values, dtype), dtype);
    const [left, right, added] = [read(a), read(b), read(bias)];
    // Every 101st result is checked, which reaches each column, row and block of all sizes above.
    for (let at = 0; at < stored.length; at += 101) {
      const [s, i, j] = [Math.floor(at / (m * n)), Math.floor(at / n) % m, at % n];
      let sum = added[j]!;
      let size = Math.abs(sum);
      for (let q = 0; q < k; q++) {
        const term =
          left[s * m * k + (transposeA ? q * m + i : i * k + q)]! *
          right[s * k * n + (transposeB ? j * k + q : q * n + j)]!;
        sum += term;
        size += Math.abs(term);
      }
      // This allows a few roundings of each partial sum, and one of the result in 16 bits.
      const tolerance = size * 2e-7 * Math.sqrt(k) + (dtype === 'f32' ? 0 : Math.abs(sum) / 256);
      expect(Math.abs(stored[at]! - sum), `result ${at}`).toBeLessThan(tolerance);
    }
  });
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
      const found = await run(await open(1), dtype, extent, { a: a!, b: b! });
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
    const found = await run(await open(threads), 'f32', extent, { a, b, bias });
    const sums = new Float32Array(found.buffer, found.byteOffset, extent.m * extent.n);
    expect(new Set(sums)).toEqual(new Set([2 * extent.k]));
  }
});

async function run(
  backend: Backend,
  dtype: DType,
  { batches, ...extent }: Shape,
  values: { readonly a: Float32Array; readonly b: Float32Array; readonly bias?: Float32Array },
): Promise<Uint8Array> {
  const { m, n, k } = extent;
  const [a, b, bias] = [values.a, values.b, values.bias].map(
    (data) => data && makeView(backend, dtype, data.length, data),
  );
  const out = makeView(backend, dtype, m * n * batches, new Float32Array(m * n * batches));
  backend.run('matmul', {
    ...product(extent),
    a: a!,
    b: b!,
    bias,
    out,
    batch: [1, batches],
    aBatch: [0, m * k],
    bBatch: [0, k * n],
    outBatch: [0, m * n],
  });
  const bytes = await backend.read(out.buffer, 0, out.buffer.byteLength);
  for (const view of [a, b, bias, out]) {
    if (view !== undefined) {
      backend.free(view.buffer);
    }
  }
  return bytes.subarray(0, out.size * byteSize(dtype));
}
