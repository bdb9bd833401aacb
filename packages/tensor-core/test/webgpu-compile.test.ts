// Every kernel for hardware through Dawn's compiler on its null driver, which computes nothing: in
// each dtype and with timestamps, on any machine. A software driver takes minutes for them; those
// for software it runs in webgpu-backend.test.ts.

import { kernelCases } from '@shardweave/tensor-core/testing';
import { createWebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { openNodeGpu } from '@shardweave/tensor-core/webgpu-node';
import { expect, test } from 'vitest';

/** Fewer would mean that cases ended before they reached their kernels: there are 391. */
const LEAST_PIPELINES = 350;

test('all kernels for hardware compile', async () => {
  const gpu = openNodeGpu({ flags: ['backend=null'] });
  const backend = await createWebGpuBackend({ gpu, kernelProfile: 'hardware' });
  backend.trace(() => {});
  for (const { run } of kernelCases()) {
    await run(backend).catch(() => {}); // the values are wrong
  }
  await backend.sync(); // rejects with the first shader that does not compile
  expect(backend.statistics().pipelines).toBeGreaterThan(LEAST_PIPELINES);
  await backend.dispose();
});
