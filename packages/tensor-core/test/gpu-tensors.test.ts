// These tests pass GPUBuffers in and out, on one GPUDevice: tensors over the caller's buffers, and
// the buffers of tensors in the caller's pipelines.

import {
  affine,
  Device,
  DeviceLostError,
  defineOp,
  OptionError,
  ShapeError,
  sum,
} from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import {
  createWebGpuBackend,
  gpuBufferOf,
  tensorFromGpuBuffer,
  type WebGpuBackend,
} from '@shardweave/tensor-core/webgpu';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { reason, title, webGpu } from './support/webgpu-kit.js';

const USAGE = 0x80 | 0x4 | 0x8;

const double = defineOp({
  name: 'double',
  inputs: { x: 'float' },
  wgsl: 'fn element(i: u32) -> f32 { return 2.0 * load_x(i); }',
  plain: ({ x }, out) => out.data.set(x.data.map((value) => 2 * value)),
});

describe.skipIf(reason !== undefined)(title('GPUBuffers in and out'), () => {
  let gpu: GPUDevice;
  let backend: WebGpuBackend;
  let device: Device;
  beforeAll(async () => {
    const adapter = await webGpu().requestAdapter();
    gpu = await adapter!.requestDevice();
    backend = await createWebGpuBackend({ device: gpu });
    device = new Device(backend);
  });
  afterAll(async () => {
    device.dispose();
    await backend.dispose();
    gpu.destroy();
  });

  const bufferOf = (values: readonly number[]) => {
    const buffer = gpu.createBuffer({ size: 4 * values.length, usage: USAGE });
    gpu.queue.writeBuffer(buffer, 0, Float32Array.from(values));
    return buffer;
  };

  test('a tensor over a buffer reads and writes it, and leaves it alone at its end', async () => {
    const buffer = bufferOf([9, 1, 2, 3]);
    const before = [backend.usage(), device.memory().live, device.pool.inUseBytes];
    const x = tensorFromGpuBuffer(device, buffer, { shape: [3], byteOffset: 4 });
    expect([backend.usage(), device.memory().live, device.pool.inUseBytes]).toEqual(before);
    await device.scope(async () => {
      expect(await double(x).toArray()).toEqual(Float32Array.of(2, 4, 6));
      device.addInPlace(x, device.tensor([10, 10, 10]));
    });
    x.dispose();
    expect(() => x.view()).toThrow('its memory was freed');
    // The buffer still belongs to the caller, and holds what was written.
    const again = tensorFromGpuBuffer(device, buffer, { shape: [4] });
    expect(await again.toArray()).toEqual(Float32Array.of(9, 11, 12, 13));
    device.scope(() => double(again));
    again.dispose();
    buffer.destroy(); // The commands that use it have been submitted.
    await device.synchronize();
  });

  test('a scope ends the use, and a leaf gets a gradient', async () => {
    const buffer = bufferOf([1, 2]);
    const x = tensorFromGpuBuffer(device, buffer, { shape: [2], requiresGrad: true });
    await device.scope(async () => {
      const inner = tensorFromGpuBuffer(device, buffer, { shape: [2] });
      await sum(affine(x, 3, 0)).backward();
      expect(await inner.toArray()).toEqual(Float32Array.of(1, 2));
    });
    expect(await x.grad!.toArray()).toEqual(Float32Array.of(3, 3));
    x.grad!.dispose();
    x.dispose();
    buffer.destroy();
  });

  test("a tensor's buffer can be used in the caller's commands, in the queue's order", async () => {
    const result = bufferOf([0, 0]);
    await device.scope(async () => {
      const y = double(device.tensor([1, 2, 3]));
      const place = gpuBufferOf(y);
      expect(place.byteLength).toBe(12);
      const encoder = gpu.createCommandEncoder();
      encoder.copyBufferToBuffer(place.buffer, place.byteOffset + 4, result, 0, 8);
      gpu.queue.submit([encoder.finish()]);
      // The caller writes to the buffer before the next op reads it.
      gpu.queue.writeBuffer(place.buffer, place.byteOffset, Float32Array.of(7));
      expect(await double(y).toArray()).toEqual(Float32Array.of(14, 8, 12));
      const copied = tensorFromGpuBuffer(device, result, { shape: [2] });
      expect(await copied.toArray()).toEqual(Float32Array.of(4, 6));
    });
    result.destroy();
  });

  // A lost GPUDevice does nothing any more, and commands of the caller's would fail far from here.
  test('a lost device gives and takes no buffers', async () => {
    const adapter = await webGpu().requestAdapter();
    const lost = await adapter!.requestDevice();
    const failed = await createWebGpuBackend({ device: lost });
    const own = new Device(failed);
    const x = own.tensor([1, 2]);
    const buffer = lost.createBuffer({ size: 8, usage: USAGE });
    expect(gpuBufferOf(x).byteLength).toBe(8);
    lost.destroy();
    await expect(own.synchronize()).rejects.toThrow(DeviceLostError);
    expect(() => gpuBufferOf(x)).toThrow(DeviceLostError);
    expect(() => tensorFromGpuBuffer(own, buffer, { shape: [2] })).toThrow(DeviceLostError);
    own.dispose();
    await failed.dispose();
  });

  test('a dry run takes it and counts only what is allocated', async () => {
    const buffer = bufferOf([1, 2]);
    const plan = await device.dryRun(() =>
      double(tensorFromGpuBuffer(device, buffer, { shape: [2] })),
    );
    expect(plan.peakInUseBytes).toBe(256); // This is the result's.
    buffer.destroy();
  });

  test('what does not fit is refused', () => {
    const buffer = bufferOf([1, 2]);
    const from = (options: { shape: number[]; byteOffset?: number }) =>
      tensorFromGpuBuffer(device, buffer, options);
    expect(() => from({ shape: [3] })).toThrow(ShapeError);
    expect(() => from({ shape: [1], byteOffset: 2 })).toThrow('got bytes [2, 6)');
    expect(() => from({ shape: [1], byteOffset: 8 })).toThrow('within 8 bytes');
    const plain = gpu.createBuffer({ size: 8, usage: 0x80 });
    expect(() => tensorFromGpuBuffer(device, plain, { shape: [2] })).toThrow(OptionError);
    const other = new Device(createReferenceBackend());
    expect(() => tensorFromGpuBuffer(other, buffer, { shape: [2] })).toThrow(
      'tensorFromGpuBuffer: expected a device over webgpu, got one over reference.',
    );
    expect(() => gpuBufferOf(other.tensor([1]))).toThrow(OptionError);
    plain.destroy();
    buffer.destroy();
  });
});
