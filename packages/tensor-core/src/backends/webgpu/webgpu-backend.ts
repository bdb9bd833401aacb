// The WebGPU device behind the seam: buffers, transfers, waits and errors. Kernels are in kernels/;
// this file knows none of them by name but through the table they make.

import type { Backend, BackendInfo, BackendTraceSink, Scratch } from '../../backend.js';
import { DisposedError, requireBufferSize } from '../../errors.js';
import type { KernelCalls, KernelName } from '../../kernel-calls/kernel-calls.js';
import type { BackendBuffer } from '../../view.js';
import { isSoftwareAdapter, nameOf } from './adapters.js';
import { DryEncoder, NO_TABLES, type PlannedDispatch } from './dry-encoder.js';
import { BINDING_ALIGNMENT } from './kernel/clashes.js';
import { MatmulChoices, type MatmulChoiceTable } from './kernel/matmul-choices.js';
import { matrixUnitOf } from './kernel/matrix-unit.js';
import * as kernels from './kernels/index.js';
import { Allocations } from './queue/allocations.js';
import { type DeviceProfile, KernelContext, type ScratchSlot } from './queue/context.js';
import { Fault } from './queue/fault.js';
import { asGpuBuffer, asOwnBuffer, WebGpuBuffer } from './queue/gpu-buffer.js';
import { Pipelines } from './queue/pipelines.js';
import { Recorder } from './queue/recorder.js';
import { ScratchPool } from './queue/scratch.js';
import { DownloadPool, UploadRing } from './queue/staging.js';
import { PLANNED_FLOPS, SubmitBudget } from './queue/submit-budget.js';
import { Timestamps } from './queue/timestamps.js';
import { Waiter } from './queue/waiter.js';
import { type MatmulTuning, tuneMatmul, tuningKey } from './tuning/matmul-tuning.js';
import { withStopwatch } from './tuning/stopwatch.js';
import type { TuningStore } from './tuning/tuning-store.js';

export interface WebGpuBackendParts {
  readonly device: GPUDevice;
  readonly info: GPUAdapterInfo;
  /** Whether dispose destroys the device. */
  readonly ownsDevice: boolean;
  /** See Note [paced waits] in waiter.ts. */
  readonly isPaced: boolean;
  /** A limit smaller than the device's own, for tests of splitting. */
  readonly maxBindingBytes: number;
  /** The operations of a submit, where they shall not follow the device's speed. */
  readonly maxFlops: number | undefined;
  /** Whether a promise about the queue may be kept pending; see Note [measured speed]. */
  readonly mayAskQueue: boolean;
  readonly kernelProfile: 'hardware' | 'software';
  readonly tuningStore: TuningStore | undefined;
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

/** Staging in flight from which completion is asked for: some large uploads, far above a step's. */
const RECLAIM_BYTES = 64 * 1024 * 1024;

/**
 * The backend that runs WGSL kernels on a WebGPU device, in Node (Dawn) and in browsers.
 * createWebGpuBackend makes one; what it promises is stated at Backend.
 */
export class WebGpuBackend implements Backend {
  readonly info: BackendInfo;
  readonly #device: GPUDevice;
  readonly #ownsDevice: boolean;
  readonly #fault = new Fault();
  readonly #allocations: Allocations;
  readonly #uploads: UploadRing;
  readonly #downloads: DownloadPool;
  readonly #scratch: ScratchPool;
  readonly #pipelines: Pipelines;
  readonly #recorder: Recorder;
  readonly #waiter: Waiter;
  readonly #context: KernelContext;
  readonly #dryContext: KernelContext;
  readonly #dryEncoder: DryEncoder;
  readonly #tuningStore: TuningStore | undefined;
  readonly #adapterInfo: GPUAdapterInfo;
  readonly #slot: ScratchSlot;
  readonly #choices = new MatmulChoices();
  readonly #buffers = new Set<WebGpuBuffer>();
  #bytes = 0;
  #nextId = 0;
  #numRuns = 0;
  #sink: BackendTraceSink | undefined;
  #timestamps: Timestamps | undefined;
  #disposal: Promise<void> | undefined;
  #isReclaiming = false;

  constructor(parts: WebGpuBackendParts) {
    const { device, info } = parts;
    this.#device = device;
    this.#adapterInfo = info;
    this.#tuningStore = parts.tuningStore;
    this.#ownsDevice = parts.ownsDevice;
    this.#fault.watch(device, nameOf(info));
    // Tiles of matrix units add in an order of their own, and a compiler that may reorder sums can
    // do so in each tile's text alone.
    const compiledFor = () => {
      const tiles = this.#choices.isEmpty ? '' : `, tiles ${this.#choices.hash}`;
      return `${parts.kernelProfile} (${nameOf(info)})${tiles}`;
    };
    this.info = {
      kind: 'webgpu',
      description: nameOf(info),
      isSoftware: isSoftwareAdapter(info),
      get compiledFor() {
        return compiledFor();
      },
      isHostMemory: false,
      limits: {
        maxBufferBytes: device.limits.maxBufferSize - (device.limits.maxBufferSize % 4),
        maxViewBytes: parts.maxBindingBytes - BINDING_ALIGNMENT,
      },
    };
    this.#allocations = new Allocations(device, this.#fault, () => {
      const { staging, scratch } = this.statistics();
      const live = this.#bytes;
      return { live, reserved: live + staging.bytes + scratch.bytes };
    });
    this.#uploads = new UploadRing(this.#allocations);
    this.#downloads = new DownloadPool(this.#allocations);
    this.#scratch = new ScratchPool(this.#allocations, {
      maxBytes: this.info.limits.maxBufferBytes,
      nextId: () => this.#nextId++,
      destroy: ({ gpu, id }) => this.#recorder.destroyLater(gpu, id),
    });
    this.#allocations.onPressure(() => {
      for (const kept of [this.#uploads, this.#downloads, this.#scratch]) {
        kept.trim();
      }
    });
    this.#slot = { current: this.#scratch };
    this.#pipelines = new Pipelines(device, this.#fault);
    const budget = new SubmitBudget({
      fixedFlops: parts.maxFlops,
      whenDone: parts.mayAskQueue
        ? (done) => void device.queue.onSubmittedWorkDone().then(done, () => {})
        : undefined,
    });
    this.#recorder = new Recorder(device, {
      uploads: this.#uploads,
      downloads: this.#downloads,
      scratch: this.#slot,
      allocations: this.#allocations,
      maxBindingBytes: parts.maxBindingBytes,
      budget,
    });
    this.#waiter = new Waiter(this.#fault, this.#allocations, {
      isPaced: parts.isPaced,
      onComplete: (serial) => {
        budget.completed(serial);
        this.#uploads.reclaim(serial);
      },
    });
    const profile = profileOf(parts);
    const common = { scratch: this.#slot, matmulChoices: this.#choices };
    this.#context = new KernelContext(profile, {
      ...common,
      tableMemory: this.#scratch,
      encoder: {
        kernel: (key, build) => this.#pipelines.get(key, build),
        dispatch: (compiled, call) => this.#recorder.dispatch(compiled, call),
        upload: (view, bytes) =>
          this.#recorder.upload(asGpuBuffer(view.buffer).gpu, view.byteOffset, bytes),
      },
    });
    this.#dryEncoder = new DryEncoder(this.#slot, parts.maxFlops ?? PLANNED_FLOPS);
    this.#dryContext = new KernelContext(profile, {
      ...common,
      tableMemory: NO_TABLES,
      encoder: this.#dryEncoder,
    });
  }

  get dispatches(): number {
    return this.#numRuns;
  }

  alloc(byteLength: number, label: string): BackendBuffer {
    this.#assertLive('alloc');
    requireBufferSize(byteLength, { limitBytes: this.info.limits.maxBufferBytes, label });
    const gpu = this.#allocations.create({
      label,
      size: Math.max(4, byteLength),
      usage: 0x0080 | 0x0004 | 0x0008, // STORAGE | COPY_SRC | COPY_DST
    });
    const buffer = new WebGpuBuffer(this.#nextId++, gpu, (gpuBuffer) =>
      this.#allocations.isLost(gpuBuffer),
    );
    this.#buffers.add(buffer);
    this.#bytes += buffer.byteLength;
    return buffer;
  }

  /** @throws {Error} what the device has failed with, where it has: DeviceLostError for one. */
  requireSound(): void {
    if (this.#fault.error !== undefined) {
      throw this.#fault.error;
    }
  }

  /**
   * A buffer of the caller's, in no count of this backend's; `free` ends its use and leaves it
   * alone.
   */
  borrow(gpu: GPUBuffer): BackendBuffer {
    this.#assertLive('borrow');
    return new WebGpuBuffer(this.#nextId++, gpu, () => false);
  }

  free(buffer: BackendBuffer): void {
    if (this.#disposal !== undefined) {
      return;
    }
    const freed = asOwnBuffer(buffer);
    freed.isFreed = true;
    if (!this.#buffers.delete(freed)) {
      // The caller owns this buffer and may destroy it from now on, so its last uses are submitted.
      this.#recorder.submit();
      this.#recorder.bindGroups.forget(freed.id);
      return;
    }
    this.#bytes -= freed.byteLength;
    this.#recorder.destroyLater(freed.gpu, freed.id);
  }

  write(buffer: BackendBuffer, byteOffset: number, bytes: Uint8Array): void {
    this.#assertLive('write');
    const startMs = this.#sink && performance.now();
    this.#recorder.upload(asGpuBuffer(buffer).gpu, byteOffset, bytes);
    this.#traceStaging('upload', startMs, bytes.byteLength);
    // A host that uploads and never waits would otherwise hold ever more staging memory.
    if (!this.#isReclaiming && this.#uploads.inFlightBytes > RECLAIM_BYTES) {
      this.#isReclaiming = true;
      const settled = () => {
        this.#isReclaiming = false;
      };
      this.#sync({ isQuiet: true }).then(settled, settled);
    }
  }

  read(
    buffer: BackendBuffer,
    byteOffset: number,
    byteLength: number,
    into: Uint8Array = new Uint8Array(byteLength),
  ): Promise<Uint8Array> {
    return this.#settle('read', (resolve, reject) => {
      if (byteLength === 0) {
        resolve(into);
        return;
      }
      const startMs = this.#sink && performance.now();
      const from = asGpuBuffer(buffer).gpu;
      const { staging, serial } = this.#recorder.download(from, byteOffset, byteLength);
      this.#waiter.add({
        staging,
        byteLength,
        serial,
        done: (bytes) => {
          into.set(bytes);
          this.#traceStaging('read-back', startMs, byteLength);
        },
        settled: () => {
          this.#downloads.give(staging);
          resolve(into);
        },
        failed: (error) => {
          this.#downloads.give(staging);
          reject(error);
        },
      });
    });
  }

  copy(
    from: BackendBuffer,
    fromOffset: number,
    to: BackendBuffer,
    toOffset: number,
    byteLength: number,
  ): void {
    this.#assertLive('copy');
    this.#recorder.copy(
      asGpuBuffer(from).gpu,
      fromOffset,
      asGpuBuffer(to).gpu,
      toOffset,
      byteLength,
    );
  }

  run<K extends KernelName>(kernel: K, call: KernelCalls[K], scratch?: Scratch): void {
    this.#assertLive('run');
    this.#numRuns += 1;
    this.#withScratch(scratch, () => KERNELS[kernel](this.#context, call));
  }

  planScratch<K extends KernelName>(kernel: K, call: KernelCalls[K], scratch: Scratch): void {
    this.#withScratch(scratch, () => KERNELS[kernel](this.#dryContext, call));
  }

  /** Tells of every dispatch that planScratch finds, until it is given undefined. */
  onPlannedDispatch(sink: ((dispatch: PlannedDispatch) => void) | undefined): void {
    this.#dryEncoder.onDispatch = sink;
  }

  /**
   * Compiles the kernels that planScratch met (see Device.dryRun), beside each other, so that no
   * step waits for them. One that does not compile rejects with ShaderError by its name, and ends
   * nothing but this.
   */
  async preparePlanned(): Promise<void> {
    this.#assertLive('preparePlanned');
    this.requireSound();
    await this.#pipelines.prepare(this.#dryEncoder.takeFresh());
  }

  #withScratch(scratch: Scratch | undefined, encode: () => void): void {
    this.#slot.current = scratch ?? this.#scratch;
    try {
      encode();
    } finally {
      this.#slot.current = this.#scratch;
    }
  }

  flush(): void {
    if (this.#disposal === undefined) {
      this.#recorder.submit();
    }
  }

  sync(): Promise<void> {
    return this.#sync({ isQuiet: false });
  }

  onMemoryPressure(relieve: () => void): () => void {
    return this.#allocations.onPressure(relieve);
  }

  #sync({ isQuiet }: { readonly isQuiet: boolean }): Promise<void> {
    return this.#settle<void>('sync', (resolve, reject) => {
      const { staging, serial } = this.#recorder.fence();
      this.#waiter.add({
        staging,
        byteLength: 4,
        serial,
        isQuiet,
        done: () => {},
        settled: () => {
          this.#downloads.give(staging);
          resolve();
        },
        failed: (error) => {
          this.#downloads.give(staging);
          reject(error);
        },
      });
    });
  }

  usage(): { readonly bytes: number; readonly buffers: number } {
    return { bytes: this.#bytes, buffers: this.#buffers.size };
  }

  /** Objects made and memory held beside the buffers of `usage()`. */
  statistics(): WebGpuStatistics {
    const [up, down] = [this.#uploads.held, this.#downloads.held];
    return {
      submits: this.#recorder.openSerial - 1,
      bindGroups: this.#recorder.bindGroups.numCreated,
      pipelines: this.#pipelines.count,
      staging: { bytes: up.bytes + down.bytes, buffers: up.buffers + down.buffers },
      scratch: this.#scratch.held,
    };
  }

  /**
   * Device times come from timestamps where the adapter has them; each kernel then has a pass of
   * its own. Without them only staging is reported.
   */
  trace(sink: BackendTraceSink | undefined): void {
    this.#assertLive('trace');
    this.#recorder.submit();
    this.#sink = sink;
    const old = this.#timestamps;
    // Its last submit may still resolve into it.
    if (old !== undefined) {
      void this.#waiter.idle().then(() => old.destroy());
    }
    this.#timestamps = sink && this.#timestampsFor(sink, { isByKernel: true });
    this.#recorder.timestamps = this.#timestamps;
  }

  /** The tiles chosen so far, for other ranks, for saves and for a file by `tuningKey`. */
  exportMatmulChoices(): MatmulChoiceTable {
    return this.#choices.export();
  }

  /** Takes the tiles of a table, and no others. */
  importMatmulChoices(table: MatmulChoiceTable): void {
    this.#choices.import(table);
  }

  /**
   * Takes the tiles that the store of `tuningStore` has for this device; none where it has none.
   */
  async loadMatmulChoices(): Promise<void> {
    const table = await this.#tuningStore?.read(this.tuningKey);
    this.#choices.import(table ?? {});
  }

  /**
   * Measures candidate tiles for common classes of products, where none is chosen, keeps the
   * fastest, and leaves them to the store of `tuningStore`. Takes seconds, in which nothing else
   * should run.
   */
  async tuneMatmul(options: MatmulTuning = {}): Promise<MatmulChoiceTable> {
    this.#assertLive('tuneMatmul');
    const before = JSON.stringify(this.#choices.export());
    const prepare = async (encode: (context: KernelContext) => void) => {
      this.#withScratch(undefined, () => encode(this.#dryContext));
      await this.preparePlanned();
    };
    const parts = { backend: this, context: this.#context, prepare };
    await withStopwatch(
      {
        recorder: this.#recorder,
        sync: () => this.sync(),
        timestamps: (sink) => this.#timestampsFor(sink, { isByKernel: false }),
      },
      (stopwatch) => tuneMatmul({ ...parts, stopwatch }, options),
    );
    const table = this.#choices.export();
    if (JSON.stringify(table) !== before) {
      await this.#tuningStore?.write(this.tuningKey, table);
    }
    return table;
  }

  /**
   * What choices of tiles hold for: the adapter, and the kernels that were candidates. Browsers
   * name an adapter by vendor and architecture alone, so its subgroups and limits are part of it.
   * Two GPUs of one family that agree in these share their choices, which costs one of them time
   * and changes no value without changing its numeric class.
   */
  get tuningKey(): string {
    const { vendor, architecture, device, description } = this.#adapterInfo;
    const { subgroupMinSize, subgroupMaxSize } = this.#adapterInfo;
    const { maxBufferSize, maxStorageBufferBindingSize } = this.#device.limits;
    const { maxComputeWorkgroupStorageSize, maxComputeInvocationsPerWorkgroup } =
      this.#device.limits;
    const known = [
      ...[vendor, architecture, device, description, subgroupMinSize, subgroupMaxSize],
      ...[maxBufferSize, maxStorageBufferBindingSize],
      ...[maxComputeWorkgroupStorageSize, maxComputeInvocationsPerWorkgroup],
    ];
    return `${known.map((part) => part ?? '').join(' ')} ${tuningKey(this.#context)}`;
  }

  #timestampsFor(
    sink: BackendTraceSink,
    options: { readonly isByKernel: boolean },
  ): Timestamps | undefined {
    if (!this.#device.features.has('timestamp-query')) {
      return undefined;
    }
    return new Timestamps(this.#device, {
      ...options,
      downloads: this.#downloads,
      sink,
      wait: (job) => this.#waiter.add(job),
    });
  }

  dispose(): Promise<void> {
    this.#disposal ??= this.#dispose();
    return this.#disposal;
  }

  async #dispose(): Promise<void> {
    this.#recorder.submit();
    this.#fault.raise(new DisposedError('webgpu: the device was disposed.'));
    await this.#waiter.idle();
    // Destroying a device that still computes aborts the process on some drivers.
    await this.#device.queue.onSubmittedWorkDone().catch(() => {});
    await this.#fault.settled();
    await this.#uploads.settled();
    for (const buffer of this.#buffers) {
      buffer.gpu.destroy();
    }
    this.#buffers.clear();
    this.#bytes = 0;
    this.#timestamps?.destroy();
    this.#uploads.destroy();
    this.#downloads.destroy();
    this.#scratch.destroy();
    this.#recorder.destroy();
    if (this.#ownsDevice) {
      this.#device.destroy();
    }
  }

  #settle<T>(
    op: string,
    start: (resolve: (value: T) => void, reject: (error: Error) => void) => void,
  ): Promise<T> {
    return new Promise((resolve, reject) => {
      if (this.#disposal !== undefined) {
        throw disposed(op);
      }
      this.requireSound();
      start(resolve, reject);
    });
  }

  #assertLive(op: string): void {
    if (this.#disposal !== undefined) {
      throw disposed(op);
    }
  }

  #traceStaging(name: string, startMs: number | undefined, bytes: number): void {
    if (this.#sink === undefined || startMs === undefined) {
      return;
    }
    this.#sink({ name, track: 'staging', startMs, endMs: performance.now(), bytes });
  }
}

function disposed(op: string): DisposedError {
  return new DisposedError(`${op}: the webgpu device was disposed.`);
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
