// The WebGPU device behind the seam: its queue, and the kernels that are encoded into it, or into a
// plan. Kernels are in kernels/; this file knows none of them by name but through the table they
// make.

import type { Backend, BackendInfo, BackendTraceSink, Scratch } from '../../backend.js';
import { requireBufferSize } from '../../errors.js';
import type { KernelCalls, KernelName } from '../../kernel-calls/kernel-calls.js';
import type { BackendBuffer } from '../../view.js';
import { isSoftwareAdapter, nameOf } from './adapters.js';
import { DryEncoder, NO_TABLES, type PlannedDispatch } from './dry-encoder.js';
import { BINDING_ALIGNMENT } from './kernel/clashes.js';
import { MatmulChoices, type MatmulChoiceTable } from './kernel/matmul-choices.js';
import { matrixUnitOf } from './kernel/matrix-unit.js';
import * as kernels from './kernels/index.js';
import { MatmulTuner, type MatmulTunerParts } from './matmul-tuner.js';
import { type DeviceProfile, KernelContext } from './queue/context.js';
import { DeviceQueue, type DeviceQueueParts } from './queue/device-queue.js';
import { Fault } from './queue/fault.js';
import { asGpuBuffer } from './queue/gpu-buffer.js';
import { PLANNED_FLOPS } from './queue/submit-budget.js';
import type { MatmulTuning } from './tuning/matmul-tuning.js';

export interface WebGpuBackendParts extends DeviceQueueParts, MatmulTunerParts {
  readonly kernelProfile: 'hardware' | 'software';
}

/** Counts that stay flat in a steady state, and memory beyond `usage()`. */
export interface WebGpuStatistics {
  readonly submits: number;
  readonly bindGroups: number;
  readonly pipelines: number;
  readonly staging: { readonly bytes: number; readonly buffers: number };
  readonly scratch: { readonly bytes: number; readonly buffers: number };
}

const KERNELS: {
  readonly [K in KernelName]: (ctx: KernelContext, call: KernelCalls[K]) => void;
} = kernels;

/**
 * The backend that runs WGSL kernels on a WebGPU device, in Node (Dawn) and in browsers.
 * createWebGpuBackend makes one; what it promises is stated at Backend.
 */
export class WebGpuBackend implements Backend {
  readonly info: BackendInfo;
  readonly #queue: DeviceQueue;
  readonly #context: KernelContext;
  /** Where calls are planned and nothing runs. */
  readonly #dry: { readonly context: KernelContext; readonly encoder: DryEncoder };
  readonly #tuner: MatmulTuner;
  #numRuns = 0;

  constructor(parts: WebGpuBackendParts) {
    const { device, info } = parts;
    const matmulChoices = new MatmulChoices();
    // Tiles of matrix units add in an order of their own, and a compiler that may reorder sums can
    // do so in each tile's text alone.
    const compiledFor = () => {
      const tiles = matmulChoices.isEmpty ? '' : `, tiles ${matmulChoices.hash}`;
      return `${parts.kernelProfile} (${nameOf(info)})${tiles}`;
    };
    const maxBufferBytes = device.limits.maxBufferSize - (device.limits.maxBufferSize % 4);
    this.info = {
      kind: 'webgpu',
      description: nameOf(info),
      isSoftware: isSoftwareAdapter(info),
      get compiledFor() {
        return compiledFor();
      },
      isHostMemory: false,
      limits: { maxBufferBytes, maxViewBytes: parts.maxBindingBytes - BINDING_ALIGNMENT },
    };
    const fault = new Fault();
    fault.watch(device, nameOf(info));
    const queue = new DeviceQueue(parts, fault, maxBufferBytes);
    const { recorder, pipelines, slot: scratch } = queue;
    const profile = profileOf(parts);
    this.#queue = queue;
    this.#context = new KernelContext(profile, {
      scratch,
      matmulChoices,
      tableMemory: queue.scratch,
      encoder: {
        kernel: (key, build) => pipelines.get(key, build),
        dispatch: (compiled, call) => recorder.dispatch(compiled, call),
        upload: (view, bytes) =>
          recorder.upload(asGpuBuffer(view.buffer).gpu, view.byteOffset, bytes),
      },
    });
    const encoder = new DryEncoder(scratch, parts.maxFlops ?? PLANNED_FLOPS);
    const context = new KernelContext(profile, {
      scratch,
      matmulChoices,
      tableMemory: NO_TABLES,
      encoder,
    });
    this.#dry = { context, encoder };
    this.#tuner = new MatmulTuner(parts, {
      queue,
      context: this.#context,
      prepare: (encode) => {
        scratch.provide(undefined, () => encode(this.#dry.context));
        return this.preparePlanned();
      },
    });
  }

  get dispatches(): number {
    return this.#numRuns;
  }

  alloc(byteLength: number, label: string): BackendBuffer {
    this.#queue.requireLive('alloc');
    requireBufferSize(byteLength, { limitBytes: this.info.limits.maxBufferBytes, label });
    return this.#queue.allocations.alloc(byteLength, label);
  }

  /** @throws {Error} what the device has failed with, where it has: DeviceLostError for one. */
  requireSound(): void {
    this.#queue.requireSound();
  }

  /**
   * A buffer of the caller's, in no count of this backend's; `free` ends its use and leaves it
   * alone.
   */
  borrow(gpu: GPUBuffer): BackendBuffer {
    this.#queue.requireLive('borrow');
    return this.#queue.allocations.borrow(gpu);
  }

  free(buffer: BackendBuffer): void {
    this.#queue.free(buffer);
  }

  write(buffer: BackendBuffer, byteOffset: number, bytes: Uint8Array): void {
    this.#queue.requireLive('write');
    this.#queue.write(buffer, byteOffset, bytes);
  }

  read(
    buffer: BackendBuffer,
    byteOffset: number,
    byteLength: number,
    into: Uint8Array = new Uint8Array(byteLength),
  ): Promise<Uint8Array> {
    return this.#queue.read(buffer, byteOffset, into);
  }

  copy(
    from: BackendBuffer,
    fromOffset: number,
    to: BackendBuffer,
    toOffset: number,
    byteLength: number,
  ): void {
    this.#queue.requireLive('copy');
    const [source, target] = [asGpuBuffer(from).gpu, asGpuBuffer(to).gpu];
    this.#queue.recorder.copy(source, fromOffset, target, toOffset, byteLength);
  }

  run<K extends KernelName>(kernel: K, call: KernelCalls[K], scratch?: Scratch): void {
    this.#queue.requireLive('run');
    this.#numRuns += 1;
    this.#queue.slot.provide(scratch, () => KERNELS[kernel](this.#context, call));
  }

  planScratch<K extends KernelName>(kernel: K, call: KernelCalls[K], scratch: Scratch): void {
    this.#queue.slot.provide(scratch, () => KERNELS[kernel](this.#dry.context, call));
  }

  /** Tells of every dispatch that planScratch finds, until it is given undefined. */
  onPlannedDispatch(sink: ((dispatch: PlannedDispatch) => void) | undefined): void {
    this.#dry.encoder.onDispatch = sink;
  }

  /**
   * Compiles the kernels that planScratch met (see Device.dryRun), beside each other, so that no
   * step waits for them. One that does not compile rejects with ShaderError by its name, and ends
   * nothing but this.
   */
  async preparePlanned(): Promise<void> {
    this.#queue.requireLive('preparePlanned');
    this.requireSound();
    await this.#queue.pipelines.prepare(this.#dry.encoder.takeFresh());
  }

  flush(): void {
    if (!this.#queue.isDisposed) {
      this.#queue.recorder.submit();
    }
  }

  sync(): Promise<void> {
    return this.#queue.sync({ isQuiet: false });
  }

  onMemoryPressure(relieve: () => void): () => void {
    return this.#queue.allocations.onPressure(relieve);
  }

  usage(): { readonly bytes: number; readonly buffers: number } {
    return this.#queue.allocations.usage();
  }

  /** Objects made and memory held beside the buffers of `usage()`. */
  statistics(): WebGpuStatistics {
    const { recorder, pipelines, staging, scratch } = this.#queue;
    return {
      submits: recorder.openSerial - 1,
      bindGroups: recorder.bindGroups.numCreated,
      pipelines: pipelines.count,
      staging,
      scratch: scratch.held,
    };
  }

  /**
   * Device times come from timestamps where the adapter has them; each kernel then has a pass of
   * its own. Without them only staging is reported.
   */
  trace(sink: BackendTraceSink | undefined): void {
    this.#queue.requireLive('trace');
    this.#queue.trace(sink);
  }

  /** The tiles chosen so far, for other ranks, for saves and for a file by `tuningKey`. */
  exportMatmulChoices(): MatmulChoiceTable {
    return this.#tuner.choices.export();
  }

  /** Takes the tiles of a table, and no others. */
  importMatmulChoices(table: MatmulChoiceTable): void {
    this.#tuner.choices.import(table);
  }

  /**
   * Takes the tiles that the store of `tuningStore` has for this device; none where it has none.
   */
  loadMatmulChoices(): Promise<void> {
    return this.#tuner.load();
  }

  /**
   * Measures candidate tiles for common classes of products, where none is chosen, keeps the
   * fastest, and leaves them to the store of `tuningStore`. Takes seconds, in which nothing else
   * should run.
   */
  async tuneMatmul(options: MatmulTuning = {}): Promise<MatmulChoiceTable> {
    this.#queue.requireLive('tuneMatmul');
    return this.#tuner.tune(this, options);
  }

  /**
   * What choices of tiles hold for: the adapter, and the kernels that were candidates. Browsers
   * name an adapter by vendor and architecture alone, so its subgroups and limits are part of it.
   * Two GPUs of one family that agree in these share their choices, which costs one of them time
   * and changes no value without changing its numeric class.
   */
  get tuningKey(): string {
    return this.#tuner.key;
  }

  dispose(): Promise<void> {
    return this.#queue.dispose();
  }
}

function profileOf(parts: WebGpuBackendParts): DeviceProfile {
  const { device, info, maxBindingBytes, kernelProfile } = parts;
  const { subgroupMinSize, subgroupMaxSize } = info;
  const hasOneSize = device.features.has('subgroups') && subgroupMinSize === subgroupMaxSize;
  return {
    isSoftware: kernelProfile === 'software',
    subgroupSize: hasOneSize ? subgroupMinSize : undefined,
    hasShaderF16: device.features.has('shader-f16'),
    matrixUnit: matrixUnitOf(info, device.features),
    maxBindingBytes,
    maxInvocations: device.limits.maxComputeInvocationsPerWorkgroup,
    maxWorkgroupBytes: device.limits.maxComputeWorkgroupStorageSize,
  };
}
