// Tells what the memory of a CPU device can hold, before there is such a device.

import { SCRATCH_BASE, SCRATCH_BYTES } from '../../../assembly/layout.js';
import type { BackendInfo } from '../../backend.js';

/** The largest memory of a device: 4 GiB less a page. */
export const MAX_MEMORY_BYTES = 65535 * 65536;
const MAX_STAGING_BYTES = 16 * 1024 * 1024;
const PAGE_BYTES = 65536;

/**
 * What decides how the memory of a CPU device is divided: the same options as those of
 * CpuBackendOptions.
 */
export interface CpuLimitsOptions {
  /** The number of worker threads, as in CpuBackendOptions. */
  readonly threads: number;
  /** The most bytes, as in CpuBackendOptions. The default is what a WebAssembly memory can have. */
  readonly memoryBytes?: number;
}

/** The parts into which the memory of a device is divided. */
export interface CpuLayout {
  readonly memoryBytes: number;
  /** The address at which buffers begin. */
  readonly heapBase: number;
  /** The first of them: bytes on their way from the host. */
  readonly stagingBytes: number;
}

export function cpuLayout({ threads, memoryBytes }: CpuLimitsOptions): CpuLayout {
  const most = Math.min(memoryBytes ?? MAX_MEMORY_BYTES, MAX_MEMORY_BYTES);
  const stagingBytes = Math.floor(most / 8 / PAGE_BYTES) * PAGE_BYTES;
  return {
    memoryBytes: most,
    heapBase: SCRATCH_BASE + Math.max(1, threads) * SCRATCH_BYTES,
    stagingBytes: Math.min(MAX_STAGING_BYTES, stagingBytes),
  };
}

/** The most threads that a cpu device computes with. */
export const MAX_THREADS = 64;

/** Returns the bytes above which a device cannot hold its buffers in any case. */
export function cpuBufferBytes(options: CpuLimitsOptions): number {
  const { memoryBytes, heapBase, stagingBytes } = cpuLayout(options);
  return memoryBytes - heapBase - stagingBytes;
}

/** Returns what a CPU device reports about itself, without its threads. */
export function cpuInfo(options: CpuLimitsOptions): BackendInfo {
  const { memoryBytes } = cpuLayout(options);
  return {
    kind: 'cpu',
    description: 'wasm',
    isSoftware: true,
    compiledFor: '', // the same bits on any number of threads; an open device adds its build
    isHostMemory: true,
    limits: { maxBufferBytes: memoryBytes, maxViewBytes: memoryBytes },
  };
}
