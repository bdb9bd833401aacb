// Every kernel for hardware goes through Dawn's compiler on its null driver, which computes
// nothing: in each dtype and with timestamps, on any machine. A software driver would take minutes
// for some. Products and attention for software run in webgpu-backend.test.ts.

import { add, Device, LimitError } from '@shardweave/tensor-core';
import { kernelCases } from '@shardweave/tensor-core/testing';
import { createWebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { openNodeGpu } from '@shardweave/tensor-core/webgpu-node';
import { expect, test } from 'vitest';
import { fewHalves } from '../../../tooling/test-kit/first-of-each.ts';

const isLong = process.env.SHARDWEAVE_LONG === '1';
/**
 * The fewest kernels that must be compiled. There are 604 in the short run, which has few in 16
 * bits. Fewer mean that cases ended before they reached their kernels.
 */
const LEAST_PIPELINES = 560;

test('all kernels for hardware compile', { timeout: 240_000 }, async () => {
  const gpu = openNodeGpu({ flags: ['backend=null'] });
  const backend = await createWebGpuBackend({ gpu, kernelProfile: 'hardware' });
  backend.trace(() => {});
  for (const { callOn } of isLong ? kernelCases() : fewHalves(kernelCases())) {
    callOn?.(backend); // The values would be wrong on this driver.
    await backend.sync(); // This rejects with the first shader that does not compile.
  }
  expect(backend.statistics().pipelines).toBeGreaterThan(LEAST_PIPELINES);
  await backend.dispose();
});

test('a kernel of more storage buffers than the device allows is refused, and others run', async () => {
  const gpu = openNodeGpu({ flags: ['backend=null'] });
  const gpuDevice = await (await gpu.requestAdapter())!.requestDevice();
  const own = gpuDevice.limits;
  const limits = new Proxy(own, {
    get: (_, name) =>
      name === 'maxStorageBuffersPerShaderStage' ? 2 : Reflect.get(own, name, own),
  });
  Object.defineProperty(gpuDevice, 'limits', { value: limits });
  const backend = await createWebGpuBackend({ device: gpuDevice, kernelProfile: 'hardware' });
  const device = new Device(backend);
  const [a, b] = [device.full([4], 1), device.full([4], 2)];
  expect(() => add(a, b)).toThrow(
    /^binary add.*: expected a kernel of at most 2 storage buffers, got 3\. .*requiredLimits/,
  );
  expect(() => add(a, b)).toThrow(LimitError);
  expect(await add(a, 1).toArray()).toHaveLength(4);
  await backend.dispose();
});
