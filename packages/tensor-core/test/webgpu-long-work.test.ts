// Work that would take a GPU too long at once is cut: dispatches and submits end by an estimate of
// their operations. Results stay those of the whole work, to the bit. A further test checks how the
// device is waited for.

import {
  type BackendBuffer,
  Device,
  type KernelCalls,
  scaledDotProductAttention,
  type View,
} from '@shardweave/tensor-core';
import { createWebGpuBackend, type WebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { openNodeGpu } from '@shardweave/tensor-core/webgpu-node';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Bench, open, product, reason, title, webGpu } from './support/webgpu-kit.js';

const MAX_FLOPS = 50e9;
const TILE = 128;

/** Returns the workgroups of each dispatch, one list for each submit. */
function watchSubmits(device: GPUDevice): number[][] {
  const submits: number[][] = [];
  let open: number[] = [];
  const create = device.createCommandEncoder.bind(device);
  device.createCommandEncoder = (descriptor) => {
    const encoder = create(descriptor);
    const begin = encoder.beginComputePass.bind(encoder);
    encoder.beginComputePass = (options) => {
      const pass = begin(options);
      const dispatch = pass.dispatchWorkgroups.bind(pass);
      pass.dispatchWorkgroups = (x, y = 1, z = 1) => {
        open.push(x * y * z);
        dispatch(x, y, z);
      };
      return pass;
    };
    const finish = encoder.finish.bind(encoder);
    encoder.finish = () => {
      submits.push(open);
      open = [];
      return finish();
    };
    return encoder;
  };
  return submits;
}

describe('work beyond 50 GFLOP, on a driver that computes nothing', () => {
  let backend: WebGpuBackend;
  let submits: number[][];
  let read: BackendBuffer;
  let written: BackendBuffer;
  beforeAll(async () => {
    const gpu = openNodeGpu({ flags: ['backend=null'] });
    const device = await (await gpu.requestAdapter())!.requestDevice();
    // These are a GPU's own limits, where the null driver states those of the specification.
    const limits = { maxBufferSize: 2 ** 32, maxStorageBufferBindingSize: 2 ** 32 - 4 };
    Object.defineProperty(device, 'limits', {
      value: new Proxy(device.limits, {
        get: (own, name) => limits[name as keyof typeof limits] ?? Reflect.get(own, name, own),
      }),
    });
    submits = watchSubmits(device);
    backend = await createWebGpuBackend({
      device,
      kernelProfile: 'hardware',
      maxFlops: MAX_FLOPS,
    });
    [read, written] = [backend.alloc(2 ** 27, 'read'), backend.alloc(256, 'written')];
  });
  afterAll(() => backend.dispose());

  /**
   * Makes a view of any size over bytes that nobody reads. The buffer is as large as the largest
   * offset at which a window of an operand begins.
   */
  const view = (size: number, buffer = read): View => ({
    buffer,
    byteOffset: 0,
    dtype: 'f32',
    size,
  });

  test.each([
    ['the head of GPT-2 at 8 x 1,024', { m: 8192, n: 50257, k: 768 }, 25152, 1],
    ['the gradient of its weight', { m: 50257, n: 768, k: 8192 }, 2358, 2],
    // There are 384 tiles of 40,000 steps. 38 of them would fit a dispatch, though a chip runs 264
    // at once.
    ['the gradient of its input', { m: 8192, n: 768, k: 40000 }, 384, 7],
  ])('%s', async (_, { m, n, k }, tiles, windows) => {
    submits.length = 0;
    const call = product({ m, n, k, transposeA: false, transposeB: false });
    const views = { a: view(m * k), b: view(k * n), out: view(m * n, written) };
    backend.run('matmul', { ...views, bias: undefined, ...call });
    await backend.sync();
    const groups = submits.filter((each) => each.length > 0).flat();
    expect(groups.reduce((all, count) => all + count)).toBe(tiles * windows);
    const ofTile = 2 * TILE ** 2 * (k / windows);
    expect(Math.min(...groups)).toBeGreaterThanOrEqual(180);
    for (const dispatches of submits) {
      const all = dispatches.reduce((sum, count) => sum + count, 0);
      expect(all * ofTile).toBeLessThan(1.01 * MAX_FLOPS); // The last tile is not full.
    }
  });

  test('attention over 32,768 tokens, and over many rows', async () => {
    // A head of 32,768 tokens is cut by its tiles, each counted as if it were as long as the
    // longest. Heads that are not cut count as what they compute, a little more than half of that.
    for (const [batch, tokens, share] of [
      [1, 32768, 1],
      [64, 1024, 0.5],
    ] as const) {
      submits.length = 0;
      const [numHeads, dim] = [12, 64];
      const size = batch * tokens * numHeads * dim;
      const strides = { batch: tokens * numHeads * dim, head: dim, row: numHeads * dim };
      const forward = {
        q: view(size),
        k: view(size),
        v: view(size),
        out: view(size, written),
        stats: view(2 * batch * numHeads * tokens, backend.alloc(256, 'stats')),
        mask: undefined,
        maskStrides: [0, 0, 0, 0],
        querySegments: undefined,
        keySegments: undefined,
        dropout: undefined,
        batch,
        numHeads,
        numKvHeads: numHeads,
        numQueries: tokens,
        numKeys: tokens,
        dim,
        scale: 1,
        isCausal: true,
        window: 0,
        queryOffset: 0,
        qStrides: strides,
        kStrides: strides,
        vStrides: strides,
      } as unknown as KernelCalls['attention'];
      backend.run('attention', forward);
      await backend.sync();
      const flops = share * 4 * batch * numHeads * tokens ** 2 * dim;
      expect(submits.filter((each) => each.length > 0).length).toBeGreaterThanOrEqual(
        Math.ceil(flops / MAX_FLOPS),
      );
    }
  });

  test('small dispatches share a submit', async () => {
    submits.length = 0;
    const [x, out] = [view(64), view(64, written)];
    for (let i = 0; i < 100; i++) {
      backend.run('affine', { x, out, scale: 1, shift: 0 });
    }
    await backend.sync();
    expect(submits.map((each) => each.length)).toEqual([100]);
  });
});

describe.skipIf(reason !== undefined)(title('webgpu device, long work'), () => {
  test.each(['software', 'hardware'] as const)(
    'products that are cut give equal bits, by kernels for %s',
    async (kernelProfile) => {
      const [m, n, k] = [100, 90, 40];
      const bits = async (maxFlops: number) => {
        const backend = await open({ kernelProfile, maxFlops });
        const bench = new Bench(backend);
        const [a, b, out] = [3 * m * k, 3 * k * n, 3 * m * n].map((s) => bench.random(s, 'f32'));
        const call = product({ m, n, k, transposeA: false, transposeB: false });
        const batches = { batch: [3, 1], aBatch: [m * k, 0], bBatch: [k * n, 0] } as const;
        const outBatch = [m * n, 0] as const;
        const before = backend.statistics().submits;
        backend.run('matmul', {
          a: a!,
          b: b!,
          bias: undefined,
          out: out!,
          ...call,
          ...batches,
          outBatch,
        });
        const bytes = await bench.bytes(out!);
        const submits = backend.statistics().submits - before;
        await backend.dispose();
        return { bytes, submits };
      };
      const [whole, cut] = [await bits(MAX_FLOPS), await bits(100_000)];
      expect(whole.submits).toBe(1);
      // The product is cut along batches, rows and columns.
      expect(cut.submits).toBeGreaterThan(3 * 4);
      expect(Buffer.compare(cut.bytes, whole.bytes)).toBe(0);
    },
  );

  test("a mask's gradient that is cut gives equal bits", async () => {
    const [heads, queries, keys, dim] = [3, 21, 18, 8];
    const results = async (maxFlops: number, requiresGrad = true) => {
      const backend = await open({ maxFlops });
      const device = new Device(backend);
      const draw = (shape: number[], from: number) => {
        const length = shape.reduce((product, extent) => product * extent);
        const values = Float32Array.from({ length }, (_, i) => Math.sin(from + i));
        return device.tensor(values, shape);
      };
      const [q, k, v] = [queries, keys, keys].map((rows, i) => draw([2, rows, heads, dim], i));
      const mask = draw([heads, queries, keys], 3);
      q!.requiresGrad = true;
      mask.requiresGrad = requiresGrad;
      const out = scaledDotProductAttention(q!, k!, v!, { mask });
      await out.backward({ gradient: draw([2, queries, heads, dim], 4) });
      const gradient = await mask.grad?.toArray();
      const { submits } = backend.statistics();
      await backend.dispose();
      return { gradient, submits };
    };
    const whole = await results(MAX_FLOPS);
    const [cut, without] = [await results(5000), await results(5000, false)];
    // The 1,134 elements are 18 workgroups, and a submit holds the operations of one.
    expect(cut.submits).toBeGreaterThanOrEqual(without.submits + 18);
    expect(cut.gradient).toEqual(whole.gradient);
  });

  test('no product depends on what a submit holds: windows and parts of k are its shape', async () => {
    const [m, n] = [40, 36];
    const backends = await Promise.all(
      [MAX_FLOPS, 20_000].map((maxFlops) => open({ kernelProfile: 'hardware', maxFlops })),
    );
    // The second product's k is cut into two parts, whatever a submit holds.
    for (const k of [84, 1100]) {
      const [want, got] = await Promise.all(
        backends.map((backend) => {
          const bench = new Bench(backend);
          const out = bench.random(m * n, 'f32');
          const views = { a: bench.random(m * k, 'f32'), b: bench.random(k * n, 'f32'), out };
          const call = product({ m, n, k, transposeA: false, transposeB: false });
          backend.run('matmul', { ...views, bias: undefined, ...call });
          return bench.bytes(out);
        }),
      );
      expect(Buffer.compare(got!, want!)).toBe(0);
    }
    await Promise.all(backends.map((backend) => backend.dispose()));
  });

  test('waits are paced where the device computes on the CPU, and there alone', async () => {
    const looks = async (isFallbackAdapter: boolean) => {
      const adapter = await webGpu().requestAdapter();
      const device = await adapter!.requestDevice();
      let count = 0;
      const create = device.createBuffer.bind(device);
      device.createBuffer = (descriptor) => {
        const buffer = create(descriptor);
        const map = buffer.mapAsync.bind(buffer);
        buffer.mapAsync = (mode, offset, size) => {
          count += descriptor.label === 'read-back' ? 1 : 0;
          return map(mode, offset, size);
        };
        return buffer;
      };
      const adapterInfo = { device: 'any', description: '', vendor: '', architecture: '' };
      const backend = await createWebGpuBackend({
        device,
        adapterInfo: { ...adapterInfo, isFallbackAdapter } as GPUAdapterInfo,
        kernelProfile: 'software',
      });
      const bench = new Bench(backend);
      const [a, b, out] = [1, 2, 3].map(() => bench.zeros(512 * 512));
      const call = product({ m: 512, n: 512, k: 512, transposeA: false, transposeB: false });
      for (let i = 0; i < 4; i++) {
        backend.run('matmul', { a: a!, b: b!, bias: undefined, out: out!, ...call });
      }
      // This waits for at least 20 ms of work. A paced wait looks for half a ms and then again
      // later.
      await backend.sync();
      await backend.dispose();
      device.destroy();
      return count;
    };
    expect(await looks(false)).toBe(1);
    expect(await looks(true)).toBeGreaterThan(1);
  });
});
