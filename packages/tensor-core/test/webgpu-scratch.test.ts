// WebGPU kernels have intermediate results, such as f32 rows for an odd number of 16-bit elements.
// They are in the ledger and the pool of the device that queued them, under its limit, and in its
// dry runs.

import {
  add,
  Device,
  embedding,
  LimitError,
  layerNorm,
  matmul,
  sizeClass,
  softmax,
  sum,
} from '@shardweave/tensor-core';
import type { WebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { open, reason, title, webGpu } from './support/webgpu-kit.js';

describe.skipIf(reason !== undefined)(title('webgpu device, scratch'), () => {
  let backend: WebGpuBackend;
  let device: Device;
  beforeAll(async () => {
    backend = await open();
  });
  beforeEach(() => {
    device = new Device(backend);
  });
  afterEach(() => device.dispose());
  afterAll(() => backend.dispose());

  /** In 16 bits, every other row of 35 elements begins in the middle of a word. */
  const ELEMENTS = 33 * 35;
  const odd = () => {
    const a = device.full([33, 20], 1, { dtype: 'bf16' });
    const b = device.full([20, 35], 1, { dtype: 'bf16' });
    return () => matmul(a, b);
  };

  test('is in the peak of the ledger to the byte, and gone from what is live', async () => {
    const product = odd();
    const before = device.memory().live.total;
    device.ledger.resetPeak();
    const own = backend.statistics().scratch;
    const out = product();
    const outBytes = Math.ceil((2 * ELEMENTS) / 4) * 4;
    expect(device.memory().peak.total - before).toBe(outBytes + 4 * ELEMENTS);
    expect(device.memory().live.total - before).toBe(outBytes);
    expect((await out.toArray())[ELEMENTS - 1]).toBe(20);
    expect(backend.statistics().scratch).toEqual(own);
    expect(backend.usage().bytes).toBe(device.memory().reservedBytes);
    device.pool.trim();
    expect(device.memory().reservedBytes).toBe(device.pool.inUseBytes);
    expect(backend.usage().bytes).toBe(device.memory().reservedBytes);
  });

  test('is under the limit of the pool: one byte less is refused, and leaves nothing behind', () => {
    const product = odd();
    const inUse = device.pool.inUseBytes;
    const needed = inUse + sizeClass(2 * ELEMENTS) + sizeClass(4 * ELEMENTS);
    device.pool.limitBytes = needed - 1;
    expect(() => device.scope(() => void product())).toThrow(LimitError);
    expect(device.pool.inUseBytes).toBe(inUse);
    device.pool.limitBytes = needed;
    device.scope(() => void product());
    expect(device.pool.peakInUseBytes).toBe(needed);
  });

  test('is what a dry run counts, forward and backward', async () => {
    const leaf = { requiresGrad: true, dtype: 'bf16' } as const;
    const x = device.full([70, 33], 0.5, leaf);
    const w = device.full([33, 35], 0.5, leaf);
    const table = device.full([51, 33], 0.5, leaf);
    const gain = device.full([35], 1, leaf);
    const ids = device.tensor(Int32Array.from({ length: 70 }, (_, i) => i % 51));
    const step = async () => {
      const y = matmul(add(x, embedding(table, ids)), w);
      await sum(softmax(layerNorm(y, { weight: gain }))).backward();
      for (const tensor of [x, w, table, gain]) {
        tensor.grad!.dispose();
        tensor.grad = undefined;
      }
    };
    const base = device.pool.inUseBytes;
    const { peakInUseBytes } = await device.dryRun(step);
    device.pool.resetPeak();
    await device.scope(step);
    expect(peakInUseBytes).toBe(device.pool.peakInUseBytes - base);
    expect(device.pool.inUseBytes).toBe(base);
  });

  test('copies of inputs that share a buffer with an output are counted, dry and real', async () => {
    const step = () => {
      const all = device.full([1000], 1);
      const part = (start: number) => all.storage.view(start, 100);
      const strides = { shape: [100], aStrides: [1], bStrides: [1] };
      device.run('binary', { kind: 'add', a: part(0), b: part(110), out: part(220), ...strides });
    };
    const { peakInUseBytes } = await device.dryRun(step);
    device.scope(step);
    expect(device.pool.peakInUseBytes).toBe(4096 + 2 * 512);
    expect(peakInUseBytes).toBe(4096 + 2 * 512);
    expect(device.memory().peak.total).toBe(4000 + 2 * 400);
  });

  test("the backend's own scratch comes in size classes, never above the largest buffer", async () => {
    const adapter = await webGpu().requestAdapter();
    const gpuDevice = await adapter!.requestDevice();
    const {
      maxStorageBufferBindingSize,
      maxStorageBuffersPerShaderStage,
      maxComputeInvocationsPerWorkgroup,
    } = gpuDevice.limits;
    const limits = Object.assign(Object.create(gpuDevice.limits), {});
    for (const [name, value] of Object.entries({
      maxBufferSize: 5_000_000,
      maxStorageBufferBindingSize,
      maxStorageBuffersPerShaderStage,
      maxComputeInvocationsPerWorkgroup,
      maxComputeWorkgroupStorageSize: gpuDevice.limits.maxComputeWorkgroupStorageSize,
    })) {
      Object.defineProperty(limits, name, { value });
    }
    Object.defineProperty(gpuDevice, 'limits', { value: limits });
    const small = await open({ device: gpuDevice });
    const rowsOf = (rows: number) => {
      const buffer = small.alloc(Math.ceil((rows * 3 * 2) / 4) * 4, 'rows');
      const x = { buffer, byteOffset: 0, dtype: 'f16', size: rows * 3 } as const;
      small.run('softmax', { x, out: x, rows, cols: 3, scale: 1, isLog: false, causalRows: 0 });
    };
    rowsOf(410_000); // This takes 4.92 MB of f32, for which the next power of two is 8 MiB.
    expect(small.statistics().scratch.bytes).toBe(5_000_000);
    expect(() => rowsOf(500_000)).toThrow(LimitError);
    await small.sync();
    await small.dispose();
    gpuDevice.destroy();
  });
});
