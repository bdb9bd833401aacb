// These are the backends on which tests of ops and autograd run. A backend whose device this
// machine lacks stays in the list with the reason, so that its skipped tests say why.

import type { Backend } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { createWebGpuBackend } from '@shardweave/tensor-core/webgpu';

export interface TestedBackend {
  readonly name: string;
  /** Why the backend can't run here, or undefined where it can. */
  readonly reason: string | undefined;
  open(): Promise<Backend>;
}

export async function testedBackends(): Promise<TestedBackend[]> {
  return [
    { name: 'reference', reason: undefined, open: async () => createReferenceBackend() },
    // With two threads, outputs are split.
    { name: 'cpu', reason: undefined, open: () => createCpuBackend({ threads: 2 }) },
    await webGpu(),
  ];
}

async function webGpu(): Promise<TestedBackend> {
  const gpu = await openGpu();
  const isMissing = typeof gpu === 'string';
  const isRequired = process.env.SHARDWEAVE_REQUIRE_WEBGPU === '1';
  if (isMissing && isRequired) {
    throw new Error(`SHARDWEAVE_REQUIRE_WEBGPU=1, but there is no WebGPU here: ${gpu}`);
  }
  return isMissing
    ? { name: `webgpu (${gpu})`, reason: gpu, open: () => Promise.reject(new Error(gpu)) }
    : { name: 'webgpu', reason: undefined, open: () => createWebGpuBackend({ gpu }) };
}

/** Returns a GPU with an adapter, or why there is none. */
async function openGpu(): Promise<GPU | string> {
  try {
    const { openNodeGpu } = await import('@shardweave/tensor-core/webgpu-node');
    const gpu = openNodeGpu();
    const adapter = await gpu.requestAdapter();
    return adapter === null ? 'no adapter: no Vulkan driver that Dawn takes' : gpu;
  } catch (error) {
    return `the npm package webgpu does not load: ${(error as Error).message}`;
  }
}
