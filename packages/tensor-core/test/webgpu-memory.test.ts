// Here a WebGPU device runs out of memory. Dawn's null driver has 512 MiB and computes nothing, so
// it shows who is told and that later work is accepted. Tests on a driver that computes show that
// later work is right.

import { Device, OutOfMemoryError } from '@shardweave/tensor-core';
import { createWebGpuBackend, type WebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { openNodeGpu } from '@shardweave/tensor-core/webgpu-node';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Bench, reason, title, webGpu } from './support/webgpu-kit.js';

const MIB = 2 ** 20;
const nullGpu = openNodeGpu({ flags: ['backend=null'] });

describe('512 MiB', () => {
  let backend: WebGpuBackend;
  let device: Device;
  beforeEach(async () => {
    backend = await createWebGpuBackend({ gpu: nullGpu });
    device = new Device(backend);
  });
  afterEach(() => backend.dispose());
  const ofMib = (mib: number) => device.zeros([(mib * MIB) / 4]);

  test('an allocation beyond them fails only the next wait, whose error says what was held', async () => {
    const [first] = [ofMib(208), ofMib(208)];
    await device.synchronize();
    const lost = ofMib(224);
    const waits = await Promise.allSettled([lost.toBytes(), device.synchronize()]);
    for (const wait of waits) {
      expect(wait).toMatchObject({ reason: { code: 'OUT_OF_MEMORY', requestedBytes: 224 * MIB } });
    }
    const { liveBytes, reservedBytes } = (waits[1] as PromiseRejectedResult)
      .reason as OutOfMemoryError;
    expect(liveBytes).toBe(640 * MIB);
    expect(reservedBytes).toBeGreaterThanOrEqual(640 * MIB);
    await device.synchronize();
    expect(() => lost.storage.write(new Uint8Array(4))).toThrow(OutOfMemoryError);
    lost.dispose();
    first!.dispose();
    device.pool.trim();
    ofMib(224);
    await device.synchronize();
    expect(device.memory().reservedBytes).toBe((208 + 224) * MIB);
    expect(backend.usage()).toEqual({ bytes: (208 + 224) * MIB, buffers: 2 });
  });

  test('free buffers are given back when one fails, so that the same work then has room', async () => {
    for (const mib of [192, 208]) {
      ofMib(mib).dispose();
    }
    const attempt = () => device.scope(async () => void (await ofMib(224).toBytes()));
    await expect(attempt()).rejects.toThrow(OutOfMemoryError);
    expect(device.memory()).toMatchObject({ reservedBytes: 0, live: { total: 0 } });
    await attempt();
  });

  test('a failure that nobody waited for is told by the first wait after it, once', async () => {
    for (const mib of [208, 208, 224]) {
      ofMib(mib);
    }
    backend.flush();
    await new Promise((resolve) => setTimeout(resolve, 20));
    const small = device.zeros([4]);
    await expect(small.toBytes()).rejects.toThrow(OutOfMemoryError);
    await small.toBytes();
  });

  test('staging that has no room fails its upload or read-back, and is not used again', async () => {
    const large = ofMib(20);
    const held = [ofMib(240), ofMib(240)];
    await device.synchronize();
    const before = backend.statistics().staging;
    await expect(large.toBytes()).rejects.toThrow(OutOfMemoryError);
    expect(backend.statistics().staging.bytes).toBeLessThanOrEqual(before.bytes);
    large.storage.write(new Uint8Array(20 * MIB));
    await expect(device.synchronize()).rejects.toThrow(OutOfMemoryError);
    held[0]!.dispose();
    device.pool.trim();
    large.storage.write(new Uint8Array(20 * MIB));
    await large.toBytes();
  });
});

describe.skipIf(reason !== undefined)(title('on a driver that computes'), () => {
  test('work submitted with a lost buffer is dropped and reported, and the work around it is right', async () => {
    const { backend, bench, close } = await openFailing('lost');
    const x = bench.zeros(64);
    const addOne = () => backend.run('affine', { x, out: x, scale: 1, shift: 1 });
    addOne();
    expect(await bench.value(x)).toBe(1);
    const lost = backend.alloc(256, 'lost');
    expect(lost.isLost).toBe(false);
    addOne();
    backend.run('affine', { x, out: { ...x, buffer: lost }, scale: 1, shift: 1 });
    await expect(bench.value(x)).rejects.toThrow(OutOfMemoryError);
    expect(lost.isLost).toBe(true);
    expect(await bench.value(x)).toBe(1);
    addOne();
    expect(await bench.value(x)).toBe(2);
    backend.free(lost);
    await close();
  });
});

describe.skipIf(reason !== undefined)(title('what the backend keeps'), () => {
  test('a table of segments that had no memory is made again for the next step', async () => {
    const { backend, bench, close } = await openFailing('scratch');
    const segments = [{ start: 0, length: 64, group: 0 }];
    const param = bench.zeros(64);
    const sgd = { lr: 1, momentum: 0, dampening: 0, weightDecay: 0, nesterov: false };
    const step = () =>
      backend.run('sgd', {
        param,
        grad: bench.zeros(64),
        momentumBuffer: undefined,
        gradScale: undefined,
        groups: [{ ...sgd, isFirstStep: false }],
        segments,
      });
    step();
    await expect(backend.sync()).rejects.toThrow(OutOfMemoryError);
    step();
    expect(await bench.value(param)).toBe(0);
    await close();
  });

  test("the device's own wait for a trace leaves a failure to the caller's next wait", async () => {
    const { backend, bench, close } = await openFailing('lost');
    const x = bench.zeros(64);
    await backend.sync();
    backend.trace(() => {});
    const lost = backend.alloc(256, 'lost');
    backend.run('affine', { x, out: { ...x, buffer: lost }, scale: 1, shift: 1 });
    backend.flush();
    await new Promise((resolve) => setTimeout(resolve, 50));
    await expect(backend.sync()).rejects.toThrow(OutOfMemoryError);
    backend.free(lost);
    await backend.sync();
    await close();
  });
});

async function openFailing(label: string) {
  const adapter = await webGpu().requestAdapter();
  const features = ['timestamp-query'] as const;
  const gpuDevice = await adapter!.requestDevice({
    requiredFeatures: features.filter((name) => adapter!.features.has(name)),
  });
  failFirstLabeled(label, gpuDevice);
  const backend = await createWebGpuBackend({ device: gpuDevice });
  const bench = new Bench(backend);
  const close = async () => {
    bench.freeAll();
    expect(backend.usage()).toEqual({ bytes: 0, buffers: 0 });
    await backend.dispose();
    gpuDevice.destroy();
  };
  return { backend, bench, close };
}

/**
 * Makes the first buffer with this label invalid, and lets its error scope say that there was no
 * memory.
 */
function failFirstLabeled(label: string, device: GPUDevice): void {
  const create = device.createBuffer.bind(device);
  const pop = device.popErrorScope.bind(device);
  let isDone = false;
  let hasFailed = false;
  device.createBuffer = (descriptor) => {
    if (descriptor.label !== label || isDone) {
      return create(descriptor);
    }
    isDone = true;
    hasFailed = true;
    device.pushErrorScope('validation');
    const invalid = create({ ...descriptor, usage: 0x0001 | 0x0002 }); // MAP_READ | MAP_WRITE
    void pop();
    return invalid;
  };
  device.popErrorScope = () => {
    const scope = pop();
    if (!hasFailed) {
      return scope;
    }
    hasFailed = false;
    return Promise.resolve({ message: 'Out of memory.' } as GPUError);
  };
}
