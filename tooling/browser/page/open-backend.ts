// The devices of the page tests, by name.
import type { Backend } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { createWebgpuBackend } from '@shardweave/tensor-core/webgpu';

/** `cpu` with as many threads as given after the colon; in a page of one core, inline. */
export type PageDevice = 'reference' | 'webgpu' | 'cpu:1' | 'cpu:2';

export async function openBackend(device: PageDevice): Promise<Backend> {
  if (device === 'reference') return createReferenceBackend();
  if (device === 'webgpu') return createWebgpuBackend();
  return createCpuBackend({ threads: Number(device.slice('cpu:'.length)) });
}
