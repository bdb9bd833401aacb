// The devices of the page tests, by name.
import type { Backend } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { createWebGpuBackend } from '@shardweave/tensor-core/webgpu';

/**
 * `webgpu` with the adapter's own limits; `webgpu-bare` with no feature and the limits of the
 * specification, as a page asks for that knows nothing of this package. `cpu` with as many threads
 * as given after the colon, in workers whose source travels with the package; `cpu-file` with
 * workers loaded from a file beside the page.
 */
export type PageDevice = 'reference' | 'webgpu' | 'webgpu-bare' | 'cpu:1' | 'cpu:2' | 'cpu-file:2';

export async function openBackend(device: PageDevice): Promise<Backend> {
  if (device === 'reference') {
    return createReferenceBackend();
  }
  if (device === 'webgpu') {
    return createWebGpuBackend();
  }
  if (device === 'webgpu-bare') {
    const adapter = await navigator.gpu.requestAdapter();
    return createWebGpuBackend({ device: await adapter!.requestDevice() });
  }
  const [kind, threads] = device.split(':');
  return createCpuBackend({
    threads: Number(threads),
    ...(kind === 'cpu-file' ? { workerUrl: new URL('/cpu-worker.js', location.href) } : {}),
  });
}
