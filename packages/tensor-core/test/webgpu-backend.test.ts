// The WebGPU device in Node: the conformance suite of the seam with the device's own limits and with
// a small one that makes kernels split, then what only this device has.

import { toF32Array } from '@shardweave/dtypes';
import type { Backend, BackendBuffer, KernelCalls, View } from '@shardweave/tensor-core';
import { kernelCases } from '@shardweave/tensor-core/testing';
import {
  createWebGpuBackend,
  listAdapters,
  type WebGpuBackend,
} from '@shardweave/tensor-core/webgpu';
import { openNodeGpu } from '@shardweave/tensor-core/webgpu-node';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';

const gpu = await openGpu();
const reason = gpu instanceof Error ? gpu.message : undefined;
const isLong = process.env.SHARDWEAVE_LONG === '1';
const isRequired = process.env.SHARDWEAVE_REQUIRE_WEBGPU === '1';
/** Every case's rows fit, while patterns, tables and products don't fit at once. */
const SMALL_BINDING = 48 * 1024;
/** Splits products that are small enough for the tile that compiles fastest. */
const TINY_BINDING = 16 * 1024;

async function openGpu(): Promise<GPU | Error> {
  try {
    const opened = openNodeGpu();
    const adapter = await opened.requestAdapter();
    return adapter === null ? new Error('no adapter: no Vulkan driver that Dawn takes') : opened;
  } catch (error) {
    return new Error(`the npm package webgpu does not load: ${(error as Error).message}`);
  }
}

type Options = NonNullable<Parameters<typeof createWebGpuBackend>[0]>;

function open(options: Options = {}): Promise<WebGpuBackend> {
  return createWebGpuBackend({ gpu: gpu as GPU, ...options });
}

if (isRequired && reason !== undefined) {
  throw new Error(`SHARDWEAVE_REQUIRE_WEBGPU=1, but there is no adapter: ${reason}`);
}

describe.skipIf(reason !== undefined)(`webgpu device${reason ? ` (${reason})` : ''}`, () => {
  describe.each<{ name: string; options: Options }>([
    { name: "the device's own limits", options: {} },
    { name: 'bindings of 48 KiB', options: { maxBindingBytes: SMALL_BINDING } },
    { name: 'the kernels for hardware', options: { kernelProfile: 'hardware' } },
  ])('conformance with $name', ({ options }) => {
    let backend: WebGpuBackend;
    beforeAll(async () => {
      backend = await open(options);
    });
    afterAll(() => backend.dispose());
    // A CPU driver compiles workgroup kernels for seconds each, with a cold shader cache for minutes
    // in all: their 16-bit forms and further products run where `npm run test:long` asks for them.
    const isSlow = (name: string) =>
      options.kernelProfile === 'hardware' &&
      /f16|^matmul (?!.* of all shapes)|operands of matmul/.test(name) &&
      !isLong;
    for (const kernelCase of kernelCases().filter(({ name }) => !isSlow(name))) {
      test(kernelCase.name, () => kernelCase.run(backend));
    }
  });

  describe('operands larger than a binding', () => {
    let whole: WebGpuBackend;
    let split: WebGpuBackend;
    beforeAll(async () => {
      [whole, split] = await Promise.all([open(), open({ maxBindingBytes: TINY_BINDING })]);
    });
    afterAll(() => Promise.all([whole.dispose(), split.dispose()]));

    /** Runs on both backends with equal inputs; returns both results as bytes. */
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
        // k windows round the running sum between dispatches only where it is stored: f32, or f16 once.
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
      const [wantNorm, gotNorm] = await both((bench) => {
        const out = bench.zeros(1);
        bench.backend.run('squaredNorm', { x: bench.random(size, 'f32'), out, accumulate: false });
        return out;
      });
      expectClose(gotNorm, wantNorm, 'f32');
    });
  });

  describe('queue', () => {
    let backend: WebGpuBackend;
    let bench: Bench;
    beforeAll(async () => {
      backend = await open();
      bench = new Bench(backend);
    });
    afterAll(() => backend.dispose());

    test('200 read-backs in a row, and 200 at once', async () => {
      const x = bench.zeros(1);
      const step = () => backend.run('affine', { x, out: x, scale: 1, shift: 1 });
      const values: number[] = [];
      for (let i = 0; i < 200; i++) {
        step();
        values.push(await bench.value(x));
      }
      const pending = Array.from({ length: 200 }, () => {
        step();
        return bench.value(x);
      });
      values.push(...(await Promise.all(pending)));
      expect(values).toEqual(Array.from({ length: 400 }, (_, i) => i + 1));
    });

    test('a steady state makes no new objects', async () => {
      const [a, b, out] = [bench.random(4096, 'f32'), bench.random(4096, 'f32'), bench.zeros(4096)];
      const step = async () => {
        backend.write(a.buffer, 0, new Uint8Array(4 * 4096));
        const call = product({ m: 64, n: 64, k: 64, transposeA: false, transposeB: false });
        backend.run('matmul', { a, b, bias: undefined, out, ...call });
        const extent = { outer: 1, dim: 4096, inner: 1 };
        backend.run('reduce', { kind: 'sum', x: out, out: { ...a, size: 1 }, ...extent });
        await backend.read(a.buffer, 0, 4);
      };
      for (let i = 0; i < 5; i++) await step();
      const { submits: _before, ...before } = backend.statistics();
      const usage = backend.usage();
      for (let i = 0; i < 20; i++) await step();
      const { submits: _after, ...after } = backend.statistics();
      expect(after).toEqual(before);
      expect(backend.usage()).toEqual(usage);
    });

    test('uploads that nobody waits for hold bounded staging memory', async () => {
      const x = bench.zeros(2 ** 20);
      const bytes = new Uint8Array(4 * 2 ** 20);
      for (let i = 0; i < 60; i++) {
        backend.write(x.buffer, 0, bytes);
        backend.flush();
        await new Promise((resolve) => setTimeout(resolve, 2));
      }
      expect(backend.statistics().staging.bytes).toBeLessThan(180 * 1024 * 1024);
    });

    test('a binding may be shared: inputs and outputs in one buffer', async () => {
      const all = bench.random(1000, 'f32');
      const part = (start: number): View => ({ ...all, byteOffset: 4 * start, size: 100 });
      const before = new Float32Array((await bench.bytes(all)).buffer);
      const call = { shape: [100], aStrides: [1], bStrides: [1] };
      backend.run('binary', { kind: 'add', a: part(0), b: part(110), out: part(220), ...call });
      const after = new Float32Array((await bench.bytes(all)).buffer);
      const want = before.slice();
      for (let i = 0; i < 100; i++) want[220 + i] = want[i]! + want[110 + i]!;
      expect(after).toEqual(want);
    });

    // Tuning compiles every tile: half a minute on a CPU driver with a cold shader cache.
    test.runIf(isLong)('choices of tiles go from one backend to another', async () => {
      const shapes = [64, 512].map((size) => [size, size, 32] as const);
      const table = await backend.tuneMatmul({ shapes });
      const sizes = Object.keys(table).map((name) => name.split(' ').at(-1));
      expect(sizes.sort()).toEqual(['medium', 'medium', 'medium', 'small', 'small', 'small']);
      const other = await open({ matmulChoices: table });
      expect(other.exportMatmulChoices()).toEqual(table);
      await other.dispose();
    });

    test('each class of sizes has a choice of its own', async () => {
      const tiles = { small: 'direct 8x8x8', medium: 'direct 4x4x8', large: 'direct 8x8x8' };
      const classes = Object.entries(tiles).map(([size, tile]) => [`NN f32 f32 f32 ${size}`, tile]);
      const other = await open({ matmulChoices: Object.fromEntries(classes) });
      const seeded = new Bench(other);
      const kernels: string[] = [];
      other.trace(({ name, track }) => track === 'device' && kernels.push(name));
      for (const size of [64, 256, 512]) {
        const [a, b, out] = [1, 2, 3].map(() => seeded.zeros(size * size));
        const call = product({ m: size, n: size, k: size, transposeA: false, transposeB: false });
        other.run('matmul', { a: a!, b: b!, bias: undefined, out: out!, ...call });
      }
      await other.sync();
      const chosen = kernels.filter((name) => name.startsWith('matmul'));
      expect(chosen.map((name) => name.replace(/.*(?=direct)/, ''))).toEqual(Object.values(tiles));
      await other.dispose();
    });

    test('all tiles give equal bits', async () => {
      const hardware = await open({ kernelProfile: 'hardware' });
      const tiles: [WebGpuBackend, string][] = [
        [backend, 'direct 8x8x8'],
        [backend, 'direct 4x4x8'],
        [backend, 'broadcast 16x2x8'],
        [hardware, 'shared 32x32x16/4'],
        [hardware, 'shared 64x64x16/4'],
        [hardware, 'shared 64x64x16/8'],
        [hardware, 'shared 128x128x8/8'],
      ];
      const results = new Map<string, string>();
      for (const [chosen, tile] of tiles) {
        chosen.importMatmulChoices({ 'NN f32 f32 f32 small': tile });
        const seeded = new Bench(chosen);
        const [a, b, out] = [140 * 50, 50 * 130, 140 * 130].map((n) => seeded.random(n, 'f32'));
        const call = product({ m: 140, n: 130, k: 50, transposeA: false, transposeB: false });
        chosen.run('matmul', { a: a!, b: b!, bias: undefined, out: out!, ...call });
        results.set(tile, Buffer.from(await seeded.bytes(out!)).toString('base64'));
        seeded.freeAll();
      }
      const [first] = results.values();
      const others = [...results].filter(([, bits]) => bits !== first).map(([tile]) => tile);
      expect(others).toEqual([]);
      await hardware.dispose();
    });

    test('a trace names kernels and transfers, with times in order', async () => {
      const events: { name: string; track: string; startMs: number; endMs: number }[] = [];
      backend.trace((event) => events.push(event));
      const x = bench.random(4096, 'f32');
      backend.run('unary', { kind: 'exp', x, out: x });
      await backend.read(x.buffer, 0, 4096);
      await backend.sync();
      backend.trace(undefined);
      expect(events.map((e) => e.track)).toContain('staging');
      expect(events.every((e) => e.endMs >= e.startMs)).toBe(true);
      const [kernel] = events.filter((e) => e.track === 'device');
      expect(kernel?.name).toContain('unary exp');
    });
  });

  describe('failures', () => {
    test('adapters are described', async () => {
      const adapters = await listAdapters(gpu as GPU);
      expect(adapters.length).toBeGreaterThan(0);
      expect(adapters[0]!.maxBindingBytes).toBeGreaterThanOrEqual(128 * 1024 * 1024);
    });

    test('no GPU and no adapter are typed errors', async () => {
      const none = { requestAdapter: async () => null } as unknown as GPU;
      await expect(createWebGpuBackend({ gpu: none })).rejects.toMatchObject({
        code: 'DEVICE_LOST',
        reason: 'no-adapter',
      });
    });

    test('a kernel that does not compile rejects reads with its numbered source', async () => {
      const adapter = await (gpu as GPU).requestAdapter();
      const device = await adapter!.requestDevice();
      const create = device.createShaderModule.bind(device);
      device.createShaderModule = ({ code, ...rest }) =>
        create({
          ...rest,
          code: code.replace('fn main', 'fn other() -> u32 { return lost; }\nfn main'),
        });
      const backend = await createWebGpuBackend({ device });
      const x = new Bench(backend).zeros(4);
      backend.run('affine', { x, out: x, scale: 1, shift: 1 });
      await expect(backend.read(x.buffer, 0, 16)).rejects.toMatchObject({
        code: 'SHADER',
        label: 'affine f32 x=out',
        message: expect.stringMatching(/\d+:\d+ error: .*lost[\s\S]* 1 \| struct Params/),
      });
      await expect(backend.sync()).rejects.toMatchObject({ code: 'SHADER' });
      await backend.dispose();
      device.destroy();
    });

    test('a lost device rejects pending and later reads', async () => {
      const adapter = await (gpu as GPU).requestAdapter();
      const device = await adapter!.requestDevice();
      const backend = await createWebGpuBackend({ device });
      const bench = new Bench(backend);
      const x = bench.zeros(4);
      const pending = backend.read(x.buffer, 0, 16);
      device.destroy();
      await expect(pending).rejects.toMatchObject({ code: 'DEVICE_LOST' });
      await expect(backend.read(x.buffer, 0, 16)).rejects.toMatchObject({ code: 'DEVICE_LOST' });
      await expect(backend.sync()).rejects.toMatchObject({ code: 'DEVICE_LOST' });
      await backend.dispose();
    });

    test('a disposed device rejects and throws', async () => {
      const backend = await open();
      const x = new Bench(backend).zeros(4);
      const pending = backend.read(x.buffer, 0, 16);
      const rejected = expect(pending).rejects.toMatchObject({ code: 'DISPOSED' });
      await backend.dispose();
      await backend.dispose();
      await rejected;
      expect(() => backend.alloc(4, 'late')).toThrow(/disposed/);
      expect(backend.usage()).toEqual({ bytes: 0, buffers: 0 });
    });
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

/** Buffers of equal contents on every backend: the n-th random view is the same. */
class Bench {
  readonly backend: Backend;
  readonly #buffers: BackendBuffer[] = [];
  #seed = 1;

  constructor(backend: Backend) {
    this.backend = backend;
  }

  /** Uniform in [-1, 1). */
  random(size: number, dtype: 'f32' | 'f16'): View {
    const values = Float32Array.from({ length: size }, () => this.#next() * 2 - 1);
    const whole = this.#view(values, 'f32');
    if (dtype === 'f32') return whole;
    const out = this.#view(new Float32Array(Math.ceil(size / 2)), 'f32');
    const half: View = { ...out, dtype: 'f16', size };
    this.backend.run('cast', { x: whole, out: half });
    return half;
  }

  zeros(size: number): View {
    return this.#view(new Float32Array(size), 'f32');
  }

  /** Ids in [0, below). */
  ids(size: number, below: number): View {
    const ids = Uint32Array.from({ length: size }, () => Math.floor(this.#next() * below));
    return this.#view(ids, 'u32');
  }

  async value(view: View): Promise<number> {
    return new Float32Array((await this.backend.read(view.buffer, 0, 4)).buffer)[0]!;
  }

  bytes(view: View): Promise<Uint8Array> {
    return this.backend.read(view.buffer, 0, view.buffer.byteLength);
  }

  freeAll(): void {
    for (const buffer of this.#buffers.splice(0)) this.backend.free(buffer);
  }

  #view(data: Float32Array | Uint32Array, dtype: 'f32' | 'u32'): View {
    const buffer = this.backend.alloc(data.byteLength, 'test');
    this.#buffers.push(buffer);
    this.backend.write(buffer, 0, new Uint8Array(data.buffer));
    return { buffer, byteOffset: 0, dtype, size: data.length };
  }

  /** Park and Miller's generator; enough for test values. */
  #next(): number {
    this.#seed = (this.#seed * 48271) % 2147483647;
    return this.#seed / 2147483647;
  }
}

function product(extent: {
  m: number;
  n: number;
  k: number;
  transposeA: boolean;
  transposeB: boolean;
}): Omit<KernelCalls['matmul'], 'a' | 'b' | 'out' | 'bias'> {
  const { m, n, k, transposeA, transposeB } = extent;
  return {
    ...extent,
    aRow: transposeA ? m : k,
    bRow: transposeB ? k : n,
    outRow: n,
    batch: [1, 1],
    aBatch: [0, 0],
    bBatch: [0, 0],
    outBatch: [0, 0],
    alpha: 1,
    accumulate: false,
  };
}

function firstDifference(got: Uint8Array, want: Uint8Array): number {
  return want.findIndex((byte, i) => got[i] !== byte);
}

/** Sums in other parts: f32 within 1e-5 of values of about 10, f16 within that and a unit. */
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
