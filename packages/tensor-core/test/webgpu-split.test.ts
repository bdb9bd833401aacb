// The WebGPU device gets operands larger than a binding, and split kernels are compared with whole
// ones.

import { toF32Array } from '@shardweave/dtypes';
import {
  add,
  type Backend,
  cumSum,
  Device,
  embedding,
  type KernelCalls,
  LimitError,
  matmul,
  max,
  mul,
  rmsNorm,
  softmax,
  sum,
  topK,
  transpose,
  type View,
} from '@shardweave/tensor-core';
import { createReferenceBackend, splitKernelCases } from '@shardweave/tensor-core/testing';
import type { WebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Bench, open, product, reason, title } from './support/webgpu-kit.js';

/** This binding splits products that are small enough for the tile that compiles fastest. */
const TINY_BINDING = 16 * 1024;

describe.skipIf(reason !== undefined)(title('webgpu device, split operands'), () => {
  let whole: WebGpuBackend;
  let split: WebGpuBackend;
  beforeAll(async () => {
    [whole, split] = await Promise.all([open(), open({ maxBindingBytes: TINY_BINDING })]);
  });
  afterAll(() => Promise.all([whole.dispose(), split.dispose()]));

  describe('against the reference', () => {
    let small: WebGpuBackend;
    beforeAll(async () => {
      small = await open({ maxBindingBytes: 4 * 1024 });
    });
    afterAll(() => small.dispose());
    for (const { name, run } of splitKernelCases()) {
      test(name, () => run(small));
    }

    /** Returns a loss and its gradients, of ops whose operands take up to eight bindings. */
    async function trained(backend: Backend): Promise<number[]> {
      const device = new Device(backend);
      const leaf = (shape: readonly number[], size: number) => {
        const values = Float32Array.from({ length: size }, (_, i) => ((i * 193) % 257) / 128 - 1);
        return device.tensor(values, shape, { requiresGrad: true });
      };
      const [table, weight, bias] = [leaf([420, 8], 3360), leaf([8], 8), leaf([8], 8)];
      const ids = device.tensor(
        Int32Array.from({ length: 132 }, (_, i) => (i * 37) % 420),
        [2, 66],
      );
      const loss = await device.scope(async () => {
        const x = rmsNorm(embedding(table, ids), { weight }); // [2, 66, 8]
        const weights = softmax(matmul(x, x, { transposeB: true })); // [2, 66, 66]
        const mixed = add(transpose(matmul(transpose(weights), add(x, bias))), 1); // [2, 8, 66]
        const { values } = topK(cumSum(weights, { axis: 1 }), 3, { axis: 1 }); // [2, 3, 66]
        const scale = add(max(weights, { axis: 1 }), sum(values, { axis: 1 }));
        const total = sum(mul(scale, sum(mul(mixed, mixed), { axis: 1 })));
        await total.backward();
        return total.item();
      });
      const gradients = await Promise.all(
        [table, weight, bias].map((leaf) => leaf.grad!.toArray()),
      );
      device.dispose();
      return [loss, ...gradients.flatMap((values) => [...values])];
    }

    test('ops and their gradients are equal', async () => {
      const [got, want] = [await trained(small), await trained(createReferenceBackend())];
      const scale = Math.max(...want.slice(1).map(Math.abs));
      expect(Math.abs(got[0]! - want[0]!) / want[0]!).toBeLessThan(1e-5);
      expect(Math.max(...want.map((value, i) => Math.abs(value - got[i]!)).slice(1))).toBeLessThan(
        1e-5 * scale, // f32 is compared with float64.
      );
    });
  });

  test('a product whose rows do not fit a binding two at a time is refused, and the device goes on', async () => {
    const bench = new Bench(split);
    const [m, n, k] = [2, 2, TINY_BINDING / 4 + 1];
    const call = { a: bench.zeros(m * k), b: bench.zeros(k * n), bias: undefined };
    const shape = product({ m, n, k, transposeA: false, transposeB: false });
    const out = bench.zeros(m * n);
    expect(() => split.run('matmul', { ...call, out, ...shape })).toThrow(LimitError);
    split.run('affine', { x: out, out, scale: 1, shift: 3 });
    expect(await bench.value(out)).toBe(3);
    bench.freeAll();
  });

  /** Runs on both backends with equal inputs, and returns both results as bytes. */
  async function both(body: (bench: Bench) => View): Promise<[Uint8Array, Uint8Array]> {
    const run = async (backend: Backend): Promise<Uint8Array> => {
      const bench = new Bench(backend);
      const out = body(bench);
      const bytes = await backend.read(out.buffer, 0, out.buffer.byteLength);
      bench.freeAll();
      return bytes;
    };
    return Promise.all([run(whole), run(split)]);
  }

  test.each([
    { transposeA: false, transposeB: false },
    { transposeA: false, transposeB: true },
    { transposeA: true, transposeB: false },
    { transposeA: true, transposeB: true },
  ])('matmul splits m, n and k ($transposeA, $transposeB)', async (transposes) => {
    const [m, n, k] = [100, 90, 110];
    for (const [dtype, accumulate] of [
      ['f32', false],
      ['f32', true],
      ['f16', false],
      ['f16', true],
    ] as const) {
      const [want, got] = await both((bench) => {
        const { transposeA, transposeB } = transposes;
        const out = bench.random(m * n, dtype);
        bench.backend.run('matmul', {
          a: bench.random(m * k, 'f32'),
          b: bench.random(k * n, 'f32'),
          bias: bench.random(n, 'f32'),
          out,
          ...product({ m, n, k, transposeA, transposeB }),
          accumulate,
        });
        return out;
      });
      // The running sum is rounded between windows of k only where it is stored: in f32, or once in
      // f16.
      expectClose(got, want, dtype);
    }
  });

  test('cross-entropy splits rows', async () => {
    const extent = { rows: 41, cols: 1001 };
    const size = extent.rows * extent.cols;
    for (const dtype of ['f32', 'f16'] as const) {
      const [want, got] = await both((bench) => {
        const logits = bench.random(size, dtype);
        const targets = bench.ids(extent.rows, extent.cols);
        const [loss, lse] = [bench.random(extent.rows, 'f32'), bench.random(extent.rows, 'f32')];
        bench.backend.run('crossEntropy', { ...extent, logits, targets, loss, lse });
        const out = bench.random(size, dtype);
        const call = { ...extent, logits, targets, lse, dLoss: loss, out };
        bench.backend.run('crossEntropyBackward', call);
        return out;
      });
      expect(firstDifference(got, want)).toBe(-1);
    }
  });

  test('embedding splits the table', async () => {
    const extent = { rows: 700, cols: 37, count: 100 };
    for (const dtype of ['f32', 'f16'] as const) {
      const [want, got] = await both((bench) => {
        const ids = bench.ids(extent.count, extent.rows + 20);
        const out = bench.random(extent.count * extent.cols, dtype);
        const table = bench.random(extent.rows * extent.cols, dtype);
        bench.backend.run('embedding', { ...extent, table, ids, out });
        bench.backend.run('embeddingBackward', { ...extent, ids, dy: out, dTable: table });
        return table;
      });
      expect(firstDifference(got, want)).toBe(-1);
    }
  });

  test('gradients of one id are added in the order of tokens, however many there are', async () => {
    const [rows, cols, count] = [3, 2, 3000];
    const values = Float32Array.from({ length: count * cols }, (_, i) => {
      return ((i * 7919) % 1009) - 504 + 1 / (i + 1);
    });
    // The ids are 0 and 1 alone.
    const ids = Uint32Array.from({ length: count }, (_, i) => (i * i) % 4);
    const want = new Float32Array(rows * cols);
    for (const [i, value] of values.entries()) {
      want[ids[Math.floor(i / cols)]! * cols + (i % cols)]! += value;
    }
    for (const backend of [whole, split]) {
      const bench = new Bench(backend);
      const views = { ids: bench.of(ids, 'u32'), dy: bench.of(values, 'f32') };
      const dTable = bench.zeros(rows * cols);
      backend.run('embeddingBackward', { ...views, dTable, rows, cols, count });
      expect(new Float32Array((await bench.bytes(dTable)).buffer)).toEqual(want);
      bench.freeAll();
    }
  });

  test('elementwise kernels, norms and optimizers split ranges', async () => {
    const size = 40_001;
    const [want, got] = await both((bench) => {
      const [x, y] = [bench.random(size, 'f32'), bench.random(size, 'f16')];
      const { backend } = bench;
      const dropped = { p: 0.3, key0: 5, key1: 6, counterOffset: 7 };
      backend.run('dropout', { x, out: x, ...dropped });
      backend.run('unary', { kind: 'tanh', x, out: y });
      const dense = { shape: [size], aStrides: [1], bStrides: [1] };
      backend.run('binary', { kind: 'mul', a: x, b: y, out: x, ...dense });
      backend.run('adam', {
        param: x,
        grad: y,
        expAvg: bench.random(size, 'f32'),
        expAvgSq: bench.zeros(size),
        gradScale: undefined,
        groups: [ADAM, { ...ADAM, lr: 1e-3, decoupled: false }],
        segments: [
          { start: 3, length: 9000, group: 0 },
          { start: 9003, length: 30_000, group: 1 },
        ],
      });
      return x;
    });
    expect(firstDifference(got, want)).toBe(-1);
    const [wantNodes, gotNodes] = await both((bench) => {
      const spans = Array.from({ length: 11 }, (_, i) => ({ start: i * 3500, length: 3499 }));
      const out = bench.zeros(spans.length);
      bench.backend.run('normNodes', { x: bench.random(size, 'f32'), out, spans, power: 2 });
      return out;
    });
    expect(firstDifference(gotNodes, wantNodes)).toBe(-1);
  });
});

const ADAM: KernelCalls['adam']['groups'][number] = {
  lr: 1e-2,
  beta1: 0.9,
  beta2: 0.99,
  eps: 1e-8,
  weightDecay: 0.1,
  biasCorrection1: 0.1,
  biasCorrection2: 0.01,
  decoupled: true,
};

function firstDifference(got: Uint8Array, want: Uint8Array): number {
  return want.findIndex((byte, i) => got[i] !== byte);
}

/**
 * The sums are added in other parts, so f32 may differ by 1e-5 of a value (of 1 for smaller
 * values), and f16 by one unit in the last place more.
 */
function expectClose(got: Uint8Array, want: Uint8Array, dtype: 'f32' | 'f16'): void {
  if (dtype === 'f32') {
    const [a, b] = [new Float32Array(got.buffer), new Float32Array(want.buffer)];
    let worst = 0;
    b.forEach((value, i) => {
      worst = Math.max(worst, Math.abs(a[i]! - value) / Math.max(1, Math.abs(value)));
    });
    expect(worst).toBeLessThan(1e-5);
    return;
  }
  const [a, b] = [got, want].map((bytes) => toF32Array(bytes, 'f16'));
  const worst = b!.map((value, i) => Math.abs(a![i]! - value) / (2e-5 + Math.abs(value) / 1024));
  expect(Math.max(...worst)).toBeLessThanOrEqual(1);
}
