// Products of the CPU device, judged by float64 and by equal bits on several devices.

import type { DType } from '@shardweave/dtypes';
import { byteSize, fromF32Array, toF32Array } from '@shardweave/dtypes';
import type { Backend } from '@shardweave/tensor-core';
import { expect } from 'vitest';
import { makeView, randomFloats } from './cpu-device.js';
import { product } from './webgpu-kit.js';

export interface ProductShape {
  readonly m: number;
  readonly n: number;
  readonly k: number;
  readonly transposeA: boolean;
  readonly transposeB: boolean;
  readonly batches: number;
}

/** Runs a product with a bias on each device, and compares the bits, and the first with float64. */
export async function expectProduct(
  devices: readonly Backend[],
  dtype: DType,
  shape: ProductShape,
): Promise<void> {
  const { m, n, k, batches, transposeA, transposeB } = shape;
  const left = storedFloats(m * k * batches, { seed: 1, dtype });
  const right = storedFloats(k * n * batches, { seed: 2, dtype });
  const added = storedFloats(n, { seed: 3, dtype });
  const all = await Promise.all(
    devices.map((device) => runProduct(device, dtype, shape, { a: left, b: right, bias: added })),
  );
  for (const other of all) {
    // toEqual would take minutes to print the difference of two large arrays.
    expect(Buffer.compare(other, all[0]!)).toBe(0);
  }
  const stored = toF32Array(all[0]!, dtype);
  // Every 101st result is checked, which reaches each column, row and block of most sizes.
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
}

/** The longest values of each seed and dtype so far, of which shorter ones are the beginning. */
const known = new Map<string, Float32Array>();

/** Returns random values as a dtype stores them. */
function storedFloats(
  size: number,
  { seed, dtype }: { readonly seed: number; readonly dtype: DType },
): Float32Array {
  const key = `${seed} ${dtype}`;
  let values = known.get(key);
  if (values === undefined || values.length < size) {
    values = toF32Array(fromF32Array(randomFloats(size, seed), dtype), dtype);
    known.set(key, values);
  }
  return values.subarray(0, size);
}

/** Returns the bytes of the results. */
export async function runProduct(
  backend: Backend,
  dtype: DType,
  { batches, ...extent }: ProductShape,
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
