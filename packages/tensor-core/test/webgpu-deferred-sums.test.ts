// Sums of parts wait for each other. These tests check when they run, what they share, and that
// nobody ever sees an output before its sum.

import { Device, layerNorm, matmul, add as plus, sum, type Tensor } from '@shardweave/tensor-core';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import {
  DeferredSums,
  type PartSum,
  type SumBatch,
} from '../src/backends/webgpu/queue/deferred-sums.js';
import type { BackendBuffer, View } from '../src/view.js';
import { open, reason, title } from './support/webgpu-kit.js';

const KIB = 1024;
const MAX_BINDING_BYTES = 64 * KIB;
let nextId = 0;

function buffer(byteLength = 2 ** 30): BackendBuffer {
  return { id: nextId++, byteLength };
}

function view(of: BackendBuffer, first: number, size: number): View {
  return { buffer: of, byteOffset: 4 * first, dtype: 'f32', size };
}

describe('sums that wait', () => {
  let sums: DeferredSums;
  let batches: SumBatch[];
  let given: number[];
  beforeEach(() => {
    sums = new DeferredSums(MAX_BINDING_BYTES);
    batches = [];
    given = [];
  });

  /** Adds a sum of two parts for each of the outputs, and returns the buffer of the parts. */
  function add(outs: readonly View[], partElements = 16): BackendBuffer {
    const parts = view(buffer(), 0, partElements);
    const each = outs.map((out): PartSum => ({ first: 0, stride: 8, numParts: 2, out }));
    const give = () => void given.push(parts.buffer.id);
    sums.add({ parts, sums: each, give }, (batch) => void batches.push(batch));
    return parts.buffer;
  }

  test('share a batch, which binds one range of a buffer for all outputs in it', () => {
    const [a, b] = [buffer(), buffer()];
    const first = add([view(a, 100, 8), view(b, 0, 4)]);
    const second = add([view(a, 4, 8)]);
    expect(batches).toEqual([]);
    sums.settle();
    sums.settle();
    expect(batches).toHaveLength(1);
    expect(batches[0]!.parts.map((parts) => parts.buffer)).toEqual([first, second]);
    expect(batches[0]!.outs).toEqual([view(a, 4, 104), view(b, 0, 4)]);
    expect(batches[0]!.sums.map(({ part, into, at }) => [part, into, at])).toEqual([
      [0, 0, 96],
      [0, 1, 0],
      [1, 0, 0],
    ]);
    expect(given).toEqual([first.id, second.id]);
  });

  test('run before a command over one of their elements, and wait for others', () => {
    const a = buffer();
    add([view(a, 100, 8)]);
    sums.before([view(a, 0, 100), view(a, 108, 100), view(buffer(), 100, 8)]);
    expect(batches).toHaveLength(0);
    sums.before([view(buffer(), 0, 1), view(a, 107, 1)]);
    expect(batches).toHaveLength(1);
    add([view(a, 100, 8)]);
    sums.before([{ ...view(a, 0, 0), byteOffset: 399, size: 2, dtype: 'bf16' }]);
    expect(batches).toHaveLength(2);
  });

  test('run before others into the same elements', () => {
    const a = buffer();
    add([view(a, 0, 8)]);
    add([view(a, 7, 8)]);
    expect(batches.map((batch) => batch.sums.length)).toEqual([1]);
  });

  test.each([
    [
      'eight bindings, one of them of outputs',
      9,
      (a: BackendBuffer, i: number) => add([view(a, 8 * i, 8)], 4),
      [7],
    ],
    [
      'eight bindings, half of them of outputs',
      5,
      (_: BackendBuffer, i: number) => add([view(buffer(), i, 8)]),
      [4],
    ],
    [
      'eight sums',
      5,
      (a: BackendBuffer, i: number) => add([view(a, 16 * i, 8), view(a, 16 * i + 8, 8)]),
      [8],
    ],
    ['32 MiB', 4, (a: BackendBuffer, i: number) => add([view(a, 8 * i, 8)], 10 * 2 ** 18), [3]],
    [
      'what a binding spans',
      3,
      (a: BackendBuffer, i: number) => add([view(a, i * 6 * KIB, 6 * KIB)]),
      [2],
    ],
  ] as const)('run when they would be more than %s', (_, count, addOne, sizes) => {
    const a = buffer();
    for (let i = 0; i < count; i++) {
      addOne(a, i);
    }
    expect(batches.map((batch) => batch.sums.length)).toEqual(sizes);
    expect(given).toHaveLength(batches[0]!.parts.length);
  });

  test('sums into a freed buffer are dropped, and so are those whose parts are freed', () => {
    const [a, b] = [buffer(), buffer()];
    const kept = add([view(a, 0, 8), view(b, 0, 8)]);
    const gone = add([view(b, 8, 8)]);
    sums.forget(a);
    sums.forget(gone);
    sums.before([view(a, 0, 8), view(b, 8, 8)]);
    expect(batches).toHaveLength(0);
    sums.settle();
    expect(batches.map((batch) => batch.sums.map(({ sum }) => sum.out))).toEqual([[view(b, 0, 8)]]);
    expect(given).toEqual([kept.id]);
  });

  test('give their scratch back once, also where the device refuses them', () => {
    const a = buffer();
    const give = vi.fn();
    const refuse = () => {
      throw new Error('lost');
    };
    const one = { first: 0, stride: 8, numParts: 2, out: view(a, 0, 8) };
    sums.add({ parts: view(buffer(), 0, 16), sums: [one], give }, refuse);
    expect(() => sums.settle()).toThrow('lost');
    sums.settle();
    expect(give).toHaveBeenCalledTimes(1);
  });
});

describe.skipIf(reason !== undefined)(title('webgpu device, kernels for hardware'), () => {
  let device: Device;
  beforeEach(async () => {
    device = new Device(await open({ kernelProfile: 'hardware' }));
  });
  afterEach(async () => {
    const { backend } = device;
    device.dispose();
    await backend.dispose();
  });

  /**
   * These rows are enough for a product of two parts, and for a norm of more parts than a lane
   * adds.
   */
  const [ROWS, WIDTH] = [1100, 24];

  /** Computes the gradients of x * w and of a norm over it in float64. */
  function wanted(x: Float32Array, upstream: Float32Array) {
    const dWeight = new Float64Array(WIDTH * WIDTH);
    const dBias = new Float64Array(WIDTH);
    for (let row = 0; row < ROWS; row++) {
      for (let j = 0; j < WIDTH; j++) {
        const dy = upstream[row * WIDTH + j]!;
        dBias[j]! += dy;
        for (let i = 0; i < WIDTH; i++) {
          dWeight[i * WIDTH + j]! += x[row * WIDTH + i]! * dy;
        }
      }
    }
    return { dWeight, dBias };
  }

  test.each([
    ['a read', (gradient: Tensor) => gradient.toArray()],
    ['a kernel', (gradient: Tensor) => plus(gradient, gradient.device.zeros([1])).toArray()],
    [
      'a copy',
      (gradient: Tensor) => {
        const { device } = gradient;
        const copied = device.empty(gradient.shape);
        const [from, to] = [gradient.view(), copied.view()];
        device.backend.copy(from.buffer, from.byteOffset, to.buffer, 0, 4 * gradient.size);
        return copied.toArray();
      },
    ],
  ])('gradients that waited are those of float64, seen by %s', async (_, seen) => {
    const values = (size: number) =>
      Float32Array.from({ length: size }, (_, i) => Math.sin(1 + i * 1.7));
    const [x, up] = [values(ROWS * WIDTH), values(ROWS * WIDTH + 5).subarray(5)];
    const { dWeight, dBias } = wanted(x, up);
    const input = device.tensor(x, [ROWS, WIDTH], { requiresGrad: true });
    const weight = device.tensor(values(WIDTH ** 2), [WIDTH, WIDTH], { requiresGrad: true });
    const gain = device.full([WIDTH], 1, { requiresGrad: true });
    const bias = device.zeros([WIDTH], { requiresGrad: true });
    const gradient = device.tensor(up, [ROWS, WIDTH]);
    await matmul(input, weight).backward({ gradient });
    await layerNorm(input, { weight: gain, bias }).backward({ gradient });
    const close = (found: ArrayLike<number>, exact: Float64Array) => {
      const largest = exact.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
      for (let i = 0; i < exact.length; i++) {
        expect(Math.abs(found[i]! - exact[i]!)).toBeLessThan(3e-6 * largest);
      }
    };
    close(await seen(bias.grad!), dBias);
    await matmul(input, weight).backward({ gradient });
    close(
      await seen(weight.grad!),
      dWeight.map((value) => 2 * value),
    );
  });

  test('a dry run counts the scratch of waiting sums, and a real run leaves none', async () => {
    const input = device.full([ROWS, WIDTH], 0.5, { requiresGrad: true });
    const weight = device.full([WIDTH, WIDTH], 0.5, { requiresGrad: true });
    const gain = device.full([WIDTH], 1, { requiresGrad: true });
    const bias = device.zeros([WIDTH], { requiresGrad: true });
    const step = async () => {
      await sum(layerNorm(matmul(input, weight), { weight: gain, bias })).backward();
      for (const tensor of [input, weight, gain, bias]) {
        tensor.grad!.dispose();
        tensor.grad = undefined;
      }
    };
    const base = device.pool.inUseBytes;
    await device.scope(step);
    // The sums wait and hold scratch of the real pool.
    expect(device.pool.inUseBytes).toBeGreaterThan(base);
    const { peakInUseBytes } = await device.dryRun(step);
    expect(device.pool.inUseBytes).toBe(base);
    expect(await device.dryRun(step)).toEqual({ peakInUseBytes });
    device.pool.resetPeak();
    await device.scope(step);
    await device.synchronize();
    expect(device.pool.inUseBytes).toBe(base);
    expect(peakInUseBytes).toBe(device.pool.peakInUseBytes - base);
  });

  test('a device that is disposed takes its waiting sums with it', async () => {
    const other = new Device(device.backend);
    const weight = other.full([WIDTH, WIDTH], 0.5, { requiresGrad: true });
    await other.scope(async () => {
      const input = other.full([ROWS, WIDTH], 0.5);
      await sum(matmul(input, weight)).backward();
    });
    other.dispose();
    await device.synchronize();
    expect(await device.full([3], 2).toArray()).toEqual(Float32Array.of(2, 2, 2));
  });
});
