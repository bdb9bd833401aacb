// The WebGPU device: opens an adapter and makes the backend. Runs in browsers and, with a GPU
// object from node.ts, in Node.

import { checkOptions } from '../../check-options.js';
import { FLAG, having, OBJECT, oneOf, whole } from '../../options.js';
import {
  infoOf,
  isSoftwareAdapter,
  requestAdapter,
  requestDevice,
  UNKNOWN_ADAPTER,
} from './adapters.js';
import type { MatmulChoiceTable } from './kernel/matmul-choices.js';
import { SPINS } from './queue/waiter.js';
import type { TuningStore } from './tuning/tuning-store.js';
import { WebGpuBackend } from './webgpu-backend.js';

export { type AdapterDescription, describeAdapter, listAdapters } from './adapters.js';
export type { PlannedDispatch } from './dry-encoder.js';
export {
  type GpuTensorOptions,
  type GpuTensorPlace,
  gpuBufferOf,
  tensorFromGpuBuffer,
} from './gpu-tensors.js';
export type { MatmulChoiceTable } from './kernel/matmul-choices.js';
export type { MatmulTuning } from './tuning/matmul-tuning.js';
export { indexedDbTuningStore, type TuningStore } from './tuning/tuning-store.js';
export type { WebGpuBackend, WebGpuStatistics } from './webgpu-backend.js';

/**
 * Options of createWebGpuBackend: which adapter or open device it takes, and how it runs kernels.
 */
export interface WebGpuOptions {
  /** The source of adapters. The default is navigator.gpu; in Node openNodeGpu() makes one. */
  readonly gpu?: GPU;
  /** An open device, which dispose leaves open. It should have the adapter's own limits. */
  readonly device?: GPUDevice;
  /**
   * A description of the adapter of `device`, for hosts that give none. The default is the device's
   * own, or an unknown hardware adapter.
   */
  readonly adapterInfo?: GPUAdapterInfo;
  /** Which of several adapters is asked for. The default is 'high-performance'. */
  readonly powerPreference?: 'low-power' | 'high-performance';
  /** Whether a driver that computes on the CPU is accepted. The default is true. */
  readonly allowSoftware?: boolean;
  /**
   * Tiles that were chosen earlier or by another rank, in place of those in `tuningStore`; see
   * exportMatmulChoices.
   */
  readonly matmulChoices?: MatmulChoiceTable;
  /**
   * The store in which tuneMatmul leaves its choices for later devices of the same adapter and
   * kernels: fileTuningStore() in Node, indexedDbTuningStore() in a page. By default there is none.
   */
  readonly tuningStore?: TuningStore;
  /** The largest storage binding in bytes, for tests of splitting. The default is the device's. */
  readonly maxBindingBytes?: number;
  /**
   * The most floating-point operations of a dispatch and of a submit, by estimate. What takes more
   * is cut, because drivers and browsers end dispatches that run for seconds, and the device with
   * them. It changes no bits. By default it begins at 5e9 and follows the measured speed, within
   * 1e9 and 200e9, so that a submit takes some 75 ms.
   */
  readonly maxFlops?: number;
  /**
   * Whether products and attention are those for hardware or for CPU drivers, for tests of the
   * other kind. By default the adapter decides.
   */
  readonly kernelProfile?: 'hardware' | 'software';
  /**
   * Whether waiting sleeps between looks at the device instead of keeping a promise pending. By
   * default it does on devices of openNodeGpu, whose event loop spins while a promise is pending,
   * where the adapter computes on the CPU.
   */
  readonly isPaced?: boolean;
}

/**
 * Opens a device. Several ranks of a process may share the backend.
 * @throws {DeviceLostError} when there is no adapter that fits.
 */
export async function createWebGpuBackend(options: WebGpuOptions = {}): Promise<WebGpuBackend> {
  checkOptions<WebGpuOptions>('createWebGpuBackend', options, {
    gpu: having('a GPU object, such as navigator.gpu', 'requestAdapter'),
    device: having('a GPUDevice', 'createBuffer', 'createComputePipeline'),
    adapterInfo: OBJECT,
    powerPreference: oneOf('high-performance', 'low-power'),
    allowSoftware: FLAG,
    matmulChoices: OBJECT,
    tuningStore: having('a TuningStore', 'read', 'write'),
    maxBindingBytes: whole(512),
    maxFlops: whole(1),
    kernelProfile: oneOf('hardware', 'software'),
    isPaced: FLAG,
  });
  const { powerPreference, allowSoftware = true } = options;
  let device = options.device;
  let info = options.adapterInfo ?? device?.adapterInfo ?? UNKNOWN_ADAPTER;
  if (device === undefined) {
    const gpu = options.gpu ?? (globalThis.navigator?.gpu as GPU | undefined);
    const adapter = await requestAdapter(gpu, {
      ...(powerPreference === undefined ? {} : { powerPreference }),
      allowSoftware,
    });
    device = await requestDevice(adapter);
    info = infoOf(adapter); // browsers had it before they had device.adapterInfo
  }
  const isSoftware = isSoftwareAdapter(info);
  const limit = device.limits.maxStorageBufferBindingSize;
  const backend = new WebGpuBackend({
    device,
    info,
    ownsDevice: options.device === undefined,
    isPaced: options.isPaced ?? (isSoftware && SPINS in device),
    maxBindingBytes: Math.min(options.maxBindingBytes ?? limit, limit - (limit % 256)),
    maxFlops: options.maxFlops,
    mayAskQueue: !(SPINS in device),
    tuningStore: options.tuningStore,
    kernelProfile: options.kernelProfile ?? (isSoftware ? 'software' : 'hardware'),
  });
  if (options.matmulChoices === undefined) {
    await backend.loadMatmulChoices();
  } else {
    backend.importMatmulChoices(options.matmulChoices);
  }
  return backend;
}
