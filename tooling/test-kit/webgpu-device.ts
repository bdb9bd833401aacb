// The WebGPU device, if this machine has an adapter, or else the reason why tests on it skip. With
// SHARDWEAVE_REQUIRE_WEBGPU=1 their files fail instead.

import type { Backend } from '@shardweave/tensor-core';
import { createWebGpuBackend } from '@shardweave/tensor-core/webgpu';

const gpu = await openGpu();

/** Why there is no device; undefined where there is one. */
export const noWebGpu = typeof gpu === 'string' ? gpu : undefined;
if (process.env.SHARDWEAVE_REQUIRE_WEBGPU === '1' && noWebGpu !== undefined) {
  throw new Error(`SHARDWEAVE_REQUIRE_WEBGPU=1, but there is no WebGPU here: ${noWebGpu}`);
}

export function openWebGpu(): Promise<Backend> {
  return createWebGpuBackend({ gpu: gpu as GPU, allowSoftware: true });
}

async function openGpu(): Promise<GPU | string> {
  try {
    const { openNodeGpu } = await import('@shardweave/tensor-core/webgpu-node');
    const found = openNodeGpu();
    const adapter = await found.requestAdapter();
    return adapter === null ? 'no adapter: no Vulkan driver that Dawn takes' : found;
  } catch (error) {
    return `the npm package webgpu does not load: ${(error as Error).message}`;
  }
}
