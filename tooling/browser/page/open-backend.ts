// The devices of the page tests, by name.
import type { Backend } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { createWebGpuBackend } from '@shardweave/tensor-core/webgpu';

/**
 * `cpu` with as many threads as given after the colon, in workers whose source travels with the
 * package; `cpu-file` with workers loaded from a file beside the page.
 */
export type PageDevice = 'reference' | 'webgpu' | 'cpu:1' | 'cpu:2' | 'cpu-file:2';

export async function openBackend(device: PageDevice): Promise<Backend> {
  if (device === 'reference') {
    return createReferenceBackend();
  }
  if (device === 'webgpu') {
    return createWebGpuBackend();
  }
  const [kind, threads] = device.split(':');
  return createCpuBackend({
    threads: Number(threads),
    ...(kind === 'cpu-file' ? { workerUrl: new URL('/cpu-worker.js', location.href) } : {}),
  });
}
