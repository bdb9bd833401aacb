// Ops over matrices in ggml's blocks: the same bits as over the decoded numbers on the cpu device,
// within a rounding on the others, and an error from every op that reads numbers alone.

import { BLOCK_SIZES, BLOCK_TYPES, type BlockType } from '@shardweave/dtypes/blocks';
import {
  cast,
  createDryBackend,
  Device,
  embedding,
  linear,
  linearCrossEntropy,
  matmul,
  reshape,
  sum,
  type Tensor,
} from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';
import { testedBackends } from './support/backends.js';

/** Both take several panels, by rows and by columns. */
const [OUT, IN] = [4096, 512];
const ROWS = 7;

const made = new Map<string, Uint8Array>();

/** Random blocks whose scales are about 2^-8, so that numbers are about 1. */
function randomBlocks(type: BlockType, count: number, seed: number): Uint8Array {
  const key = `${type} ${count} ${seed}`;
  const blocks = made.get(key) ?? makeBlocks(type, count, seed);
  made.set(key, blocks);
  return blocks.slice();
}

function makeBlocks(type: BlockType, count: number, seed: number): Uint8Array {
  const { bytes } = BLOCK_SIZES[type];
  let state = seed * 2654435761;
  const random = () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state >>> 24;
  };
  const data = Uint8Array.from({ length: count * bytes }, random);
  const view = new DataView(data.buffer);
  for (let at = 0; at < data.length; at += bytes) {
    for (const place of type === 'q6_K' ? [208] : type.endsWith('_0') ? [0] : [0, 2]) {
      view.setUint16(at + place, 0x1800 | random(), true);
    }
  }
  return data;
}

function matrix(device: Device, type: BlockType, dtype: 'f32' | 'bf16', shape = [OUT, IN]): Tensor {
  const count = (shape[0]! * shape[1]!) / BLOCK_SIZES[type].elements;
  return device.tensor(randomBlocks(type, count, 7), shape, { blocks: type, dtype });
}

function input(device: Device, dtype: 'f32' | 'bf16', width: number): Tensor {
  const values = Float32Array.from({ length: ROWS * width }, (_, i) => Math.sin(i * i));
  return device.tensor(values, [ROWS, width], { dtype, requiresGrad: true });
}

/** The result of an op over a matrix, and the gradient of its input. */
type Compute = (weight: Tensor, x: Tensor) => Tensor;

const OPS: Readonly<Record<string, { readonly width: number; readonly compute: Compute }>> = {
  'a linear layer': {
    width: IN,
    compute: (weight, x) => {
      const values = Float32Array.from({ length: OUT }, (_, i) => Math.cos(i));
      const bias = x.device.tensor(values, [OUT]);
      return linear(x, { weight, bias, transposeWeight: true, activation: 'gelu' });
    },
  },
  'a linear layer of [in, out]': { width: OUT, compute: (weight, x) => linear(x, { weight }) },
  'the loss of a head': {
    width: IN,
    compute: (weight, x) => {
      const targets = x.device.tensor(Int32Array.of(0, 4095, 255, 256, 2048, -1, 9), [ROWS]);
      return linearCrossEntropy(x, targets, { weight, reduction: 'none' });
    },
  },
};

async function results(device: Device, compute: Compute, weight: Tensor, width: number) {
  return device.scope(async () => {
    const x = input(device, weight.dtype as 'f32' | 'bf16', width);
    const out = compute(weight, x);
    await sum(out).backward();
    return [await out.toArray(), await x.grad!.toArray()];
  });
}

const bitsOf = (values: ArrayLike<number>) =>
  new Uint32Array(Float32Array.from(values).buffer).toString();

/** The largest difference relative to the largest value. */
function farthest(got: ArrayLike<number>, expected: ArrayLike<number>): number {
  const values = Array.from(expected);
  const off = values.map((value, i) => Math.abs(value - got[i]!));
  return Math.max(...off) / Math.max(...values.map(Math.abs));
}

/** The reference device, which takes seconds for these products, has the kernel's own cases. */
const DEVICES = (await testedBackends()).filter(({ name }) => name !== 'reference');

describe.each(DEVICES)('blocks on $name', ({ name, reason, open }) => {
  const cells = Object.keys(OPS).flatMap((op) =>
    (['f32', 'bf16'] as const).map((dtype, index) => ({
      op,
      dtype,
      type: BLOCK_TYPES[(Object.keys(OPS).indexOf(op) * 2 + index) % 8]!,
    })),
  );
  it.skipIf(reason !== undefined).each(cells)('$op, $type to $dtype', async (cell) => {
    const { width, compute } = OPS[cell.op]!;
    const backend = await open();
    const device = new Device(backend);
    const weight = matrix(device, cell.type, cell.dtype);
    const [expected, got] = [
      await results(device, compute, cast(weight, cell.dtype), width),
      await results(device, compute, weight, width),
    ];
    expect(expected[1]!.some((slope) => slope !== 0)).toBe(true);
    expect(expected[0]!.every(Number.isFinite)).toBe(true);
    if (name === 'cpu') {
      expect(got.map(bitsOf)).toEqual(expected.map(bitsOf));
    } else {
      const most = cell.dtype === 'f32' ? 2e-6 : 2 ** -7;
      expect(farthest(got[0]!, expected[0]!)).toBeLessThan(most);
      expect(farthest(got[1]!, expected[1]!)).toBeLessThan(most);
    }
    device.dispose();
    await backend.dispose();
  });
});

describe('few rows on the cpu device', () => {
  it.each(BLOCK_TYPES)('have the bits of products with the decoded matrix, %s', async (type) => {
    const backend = await createCpuBackend({ threads: 2 });
    const device = new Device(backend);
    const [rows, width] = [131, 2304]; // more numbers in a row than are summed at once
    const count = (rows * width) / BLOCK_SIZES[type].elements;
    const bytes = randomBlocks(type, count, 3);
    const halves = new DataView(bytes.buffer);
    // f16 scales: subnormal ones, the largest, an infinity and a NaN whose bits are all set.
    for (const [row, scale] of [0x0001, 0x83ff, 0xfbff, 0x7c00, 0xffff].entries()) {
      const block = (row * width) / BLOCK_SIZES[type].elements;
      halves.setUint16(block * BLOCK_SIZES[type].bytes + (type === 'q6_K' ? 208 : 0), scale, true);
    }
    for (const dtype of ['f32', 'f16', 'bf16'] as const) {
      const weight = device.tensor(bytes, [rows, width], { blocks: type, dtype });
      for (const m of [1, 5]) {
        const values = Float32Array.from({ length: m * width }, (_, i) => Math.sin(i * i));
        const x = device.tensor(values, [m, width], { dtype });
        const bias = device.tensor(Float32Array.from({ length: rows }, (_, i) => Math.cos(i)));
        const product = (matrix: Tensor) =>
          linear(x, { weight: matrix, bias, transposeWeight: true }).toArray();
        const [got, expected] = [await product(weight), await product(cast(weight, dtype))];
        expect(expected.filter(Number.isFinite).length).toBeGreaterThan(m * (rows - 6));
        expect([...got]).toEqual([...expected]);
      }
    }
    device.dispose();
    await backend.dispose();
  });

  it('multiplies few rows of another dtype by the numbers of its own', async () => {
    const backend = await createCpuBackend({ threads: 1 });
    const device = new Device(backend);
    const weight = matrix(device, 'q5_1', 'bf16', [9, 64]);
    const x = device.tensor(
      Float32Array.from({ length: 64 }, (_, i) => Math.sin(i)),
      [1, 64],
    );
    const product = (matrix: Tensor) => linear(x, { weight: matrix, transposeWeight: true });
    const expected = await product(cast(weight, 'bf16')).toArray();
    expect(await product(weight).toArray()).toEqual(expected);
    expect(expected).not.toEqual(await product(cast(weight, 'f32')).toArray());
    device.dispose();
    await backend.dispose();
  });
});

describe('few rows rounded to 8 bits', () => {
  const [rows, width] = [131, 2304];

  /** Five rows, the last of which has an infinity, a NaN, and 32 numbers that are next to 0. */
  function values(): Float32Array {
    const x = Float32Array.from({ length: 5 * width }, (_, i) => Math.sin(i * i) * (i % 7));
    x.set([Number.POSITIVE_INFINITY], 4 * width);
    x.fill(1e-33, 2 * width, 2 * width + 32);
    x.set([Number.NaN], 3 * width + 40);
    return x;
  }

  async function products(
    type: BlockType,
    options: { readonly threads: number; readonly fusedProducts?: boolean },
    { isTrained }: { readonly isTrained: boolean },
  ): Promise<{ got: Float32Array; numbers: Float32Array }> {
    const backend = await createCpuBackend({ ...options, quantizeActivations: true });
    const device = new Device(backend);
    const bytes = randomBlocks(type, (rows * width) / BLOCK_SIZES[type].elements, 5);
    const weight = device.tensor(bytes, [rows, width], { blocks: type });
    const x = device.tensor(values(), [5, width]);
    const bias = device.tensor(Float32Array.from({ length: rows }, (_, i) => Math.cos(i)));
    const product = () => linear(x, { weight, bias, transposeWeight: true });
    const got = await (isTrained ? product() : device.noGrad(product)).toArray();
    const numbers = (await weight.toArray()) as Float32Array;
    device.dispose();
    await backend.dispose();
    return { got: got as Float32Array, numbers };
  }

  /** Products in float64 of rows whose every 32 numbers are rounded to 127ths of the largest. */
  function expectedOf(numbers: Float32Array): number[] {
    const x = values();
    const rounded = Float64Array.from(x, (value, i) => {
      const group = x.subarray(i - (i % 32), i - (i % 32) + 32);
      const scale = Math.fround(Math.max(...group.map(Math.abs)) / 127);
      return scale < 1e-32 ? 0 : Math.round(value / scale) * scale;
    });
    return Array.from({ length: 5 * rows }, (_, i) => {
      const [row, column] = [Math.floor(i / rows) * width, (i % rows) * width];
      let sum = Math.cos(i % rows);
      for (let c = 0; c < width; c++) {
        sum += rounded[row + c]! * numbers[column + c]!;
      }
      return sum;
    });
  }

  it.each(BLOCK_TYPES)('are the products of the rounded numbers, %s', async (type) => {
    const { got, numbers } = await products(type, { threads: 1 }, { isTrained: false });
    const expected = expectedOf(numbers);
    const scale = Math.sqrt(expected.slice(0, rows).reduce((sum, v) => sum + v * v, 0) / rows);
    const off = expected.slice(0, 3 * rows).map((value, i) => Math.abs(value - got[i]!) / scale);
    expect(Math.max(...off)).toBeLessThan(2e-5);
    expect(got.subarray(3 * rows).every(Number.isNaN)).toBe(true);
  });

  it('are not rounded where gradients are recorded', async () => {
    const { got, numbers } = await products('q4_0', { threads: 1 }, { isTrained: true });
    const x = values();
    const first = numbers.subarray(0, width).reduce((sum, value, c) => sum + value * x[c]!, 1);
    expect(got[0]).toBeCloseTo(first, 3);
    const { got: rounded } = await products('q4_0', { threads: 1 }, { isTrained: false });
    expect(rounded[0]).not.toBeCloseTo(first, 3);
  });

  it.each(BLOCK_TYPES)('have the same bits on more threads and unfused, %s', async (type) => {
    const [one, ...others] = await Promise.all(
      [{ threads: 1 }, { threads: 3 }, { threads: 1, fusedProducts: false }].map((options) =>
        products(type, options, { isTrained: false }),
      ),
    );
    for (const { got } of others) {
      expect(bitsOf(got)).toEqual(bitsOf(one!.got));
    }
  });
});

describe('a matrix in blocks', () => {
  const device = new Device(createReferenceBackend());

  it.each(BLOCK_TYPES)('gives the rows of ids and its numbers, %s', async (type) => {
    const table = matrix(device, type, 'f32', [5, 256]);
    const numbers = (await cast(table, 'f32').toArray()) as Float32Array;
    expect(await table.toArray()).toEqual(numbers);
    const rows = await embedding(table, device.tensor(Int32Array.of(4, 0, 5))).toArray();
    const expected = [...numbers.subarray(4 * 256), ...numbers.subarray(0, 256)];
    expect([...rows]).toEqual([...expected, ...new Float32Array(256)]);
  });

  it('is refused by ops that read numbers, with what to do', () => {
    const x = matrix(device, 'q4_0', 'f32', [2, 32]);
    x.name = 'w';
    const advice = 'w: expected numbers, got [2, 32] in q4_0 blocks';
    expect(() => sum(x)).toThrow(advice);
    expect(() => reshape(x, [64])).toThrow('give other ops cast(x, dtype)');
    expect(() => matmul(device.zeros([1, 2]), x)).toThrow(advice);
    expect(() => cast(x, 'i32')).toThrow(
      'expected a float dtype for numbers in q4_0 blocks, got i32',
    );
  });

  it.each([
    ['q9_0', [32], 34, 'expected blocks among q8_0, q4_0,'],
    ['q8_0', [33], 34, 'multiples of 32, the block size of q8_0, and their bytes of blocks'],
    ['q8_0', [2, 32], 34, '68 bytes of blocks, got [2, 32] and 34 bytes'],
    ['q4_K', undefined, 144, 'got no shape and 144 bytes'],
  ])('is not made of other bytes: %s %s of %s', (type, shape, length, message) => {
    const blocks = type as BlockType;
    expect(() => device.tensor(new Uint8Array(length), shape, { blocks })).toThrow(message);
  });

  it('is neither trained nor decoded to integers', () => {
    const bytes = new Uint8Array(34);
    const make = (options: object) => () =>
      device.tensor(bytes, [32], { blocks: 'q8_0', ...options });
    expect(make({ requiresGrad: true })).toThrow('Blocks are not trained');
    expect(make({ dtype: 'u32' })).toThrow('expected a float dtype for blocks to become, got u32');
  });

  it('holds in a step its words and a panel of numbers, not all of them', () => {
    const dry = new Device(createDryBackend({ info: createReferenceBackend().info }));
    const weight = matrix(dry, 'q4_K', 'f32');
    const x = input(dry, 'f32', IN);
    const before = dry.ledger.peak().total;
    dry.scope(() => linear(x, { weight, transposeWeight: true }));
    expect(dry.ledger.peak().total - before).toBeLessThan(OUT * IN * 4 * 0.6);
  });
});
