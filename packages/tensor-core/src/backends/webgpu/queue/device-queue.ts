// The queue of one GPUDevice: buffers, transfers, waits, times and the end. What is recorded is
// submitted by the recorder, and all waits go through the waiter.

import type { BackendTraceSink } from '../../../backend.js';
import { DisposedError } from '../../../errors.js';
import type { BackendBuffer } from '../../../view.js';
import { Allocations } from './allocations.js';
import { ScratchSlot } from './context.js';
import type { Fault } from './fault.js';
import { asGpuBuffer, asOwnBuffer } from './gpu-buffer.js';
import { Pipelines } from './pipelines.js';
import { Recorder } from './recorder.js';
import { ScratchPool } from './scratch.js';
import { DownloadPool, UploadRing } from './staging.js';
import { SubmitBudget } from './submit-budget.js';
import { Timestamps } from './timestamps.js';
import { Waiter, type WaitJob } from './waiter.js';

export interface DeviceQueueParts {
  readonly device: GPUDevice;
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
}

/** Staging in flight from which completion is asked for: some large uploads, far above a step's. */
const RECLAIM_BYTES = 64 * 1024 * 1024;

export class DeviceQueue {
  readonly #device: GPUDevice;
  readonly #ownsDevice: boolean;
  readonly #fault: Fault;
  readonly allocations: Allocations;
  readonly scratch: ScratchPool;
  readonly slot: ScratchSlot;
  readonly recorder: Recorder;
  readonly pipelines: Pipelines;
  readonly #uploads: UploadRing;
  readonly #downloads: DownloadPool;
  readonly #waiter: Waiter;
  readonly #fenceFrom: GPUBuffer;
  #sink: BackendTraceSink | undefined;
  #timestamps: Timestamps | undefined;
  #disposal: Promise<void> | undefined;
  #isReclaiming = false;

  constructor(parts: DeviceQueueParts, fault: Fault, maxBufferBytes: number) {
    const { device, maxFlops } = parts;
    this.#device = device;
    this.#ownsDevice = parts.ownsDevice;
    this.#fault = fault;
    this.pipelines = new Pipelines(device, fault);
    const keptBytes = () => this.staging.bytes + this.scratch.held.bytes;
    this.allocations = new Allocations(device, fault, keptBytes);
    this.#uploads = new UploadRing(this.allocations);
    this.#downloads = new DownloadPool(this.allocations);
    this.scratch = new ScratchPool(this.allocations, {
      maxBytes: maxBufferBytes,
      destroy: ({ gpu, id }) => this.recorder.destroyLater(gpu, id),
    });
    this.allocations.onPressure(() => {
      for (const kept of [this.#uploads, this.#downloads, this.scratch]) {
        kept.trim();
      }
    });
    this.slot = new ScratchSlot(this.scratch);
    const budget = new SubmitBudget({
      fixedFlops: maxFlops,
      whenDone: parts.mayAskQueue
        ? (done) => void device.queue.onSubmittedWorkDone().then(done, () => {})
        : undefined,
    });
    this.recorder = new Recorder(device, {
      uploads: this.#uploads,
      downloads: this.#downloads,
      scratch: this.slot,
      allocations: this.allocations,
      maxBindingBytes: parts.maxBindingBytes,
      budget,
    });
    this.#fenceFrom = device.createBuffer({ label: 'fence', size: 4, usage: 0x0004 | 0x0008 });
    this.#waiter = new Waiter(fault, this.allocations, {
      isPaced: parts.isPaced,
      onComplete: (serial) => {
        budget.completed(serial);
        this.#uploads.reclaim(serial);
      },
    });
  }

  /** Whether dispose was called, after which nothing is recorded. */
  get isDisposed(): boolean {
    return this.#disposal !== undefined;
  }

  /** The mapped buffers between host and device. */
  get staging(): { readonly bytes: number; readonly buffers: number } {
    const [up, down] = [this.#uploads.held, this.#downloads.held];
    return { bytes: up.bytes + down.bytes, buffers: up.buffers + down.buffers };
  }

  /** @throws {DisposedError} after dispose. */
  requireLive(op: string): void {
    if (this.isDisposed) {
      throw new DisposedError(`${op}: the webgpu device was disposed.`);
    }
  }

  /** @throws {Error} what the device has failed with, where it has: DeviceLostError for one. */
  requireSound(): void {
    if (this.#fault.error !== undefined) {
      throw this.#fault.error;
    }
  }

  free(buffer: BackendBuffer): void {
    if (this.isDisposed) {
      return;
    }
    const freed = asOwnBuffer(buffer);
    freed.isFreed = true;
    if (this.allocations.remove(freed)) {
      this.recorder.destroyLater(freed.gpu, freed.id);
      return;
    }
    // The caller owns this buffer and may destroy it from now on, so its last uses are submitted.
    this.recorder.submit();
    this.recorder.bindGroups.forget(freed.id);
  }

  write(buffer: BackendBuffer, byteOffset: number, bytes: Uint8Array): void {
    const startMs = this.#sink && performance.now();
    this.recorder.upload(asGpuBuffer(buffer).gpu, byteOffset, bytes);
    this.#traceStaging('upload', startMs, bytes.byteLength);
    // A host that uploads and never waits would otherwise hold ever more staging memory.
    if (!this.#isReclaiming && this.#uploads.inFlightBytes > RECLAIM_BYTES) {
      this.#isReclaiming = true;
      const settled = () => {
        this.#isReclaiming = false;
      };
      this.sync({ isQuiet: true }).then(settled, settled);
    }
  }

  async read(buffer: BackendBuffer, byteOffset: number, into: Uint8Array): Promise<Uint8Array> {
    this.requireLive('read');
    this.requireSound();
    const { byteLength } = into;
    if (byteLength > 0) {
      const startMs = this.#sink && performance.now();
      const from = asGpuBuffer(buffer).gpu;
      await this.#wait(this.recorder.download(from, byteOffset, byteLength), {
        byteLength,
        done: (bytes) => {
          into.set(bytes);
          this.#traceStaging('read-back', startMs, byteLength);
        },
      });
    }
    return into;
  }

  async sync(options: { readonly isQuiet: boolean }): Promise<void> {
    this.requireLive('sync');
    this.requireSound();
    // A read-back of nothing waits for all that is before it.
    const fence = this.recorder.download(this.#fenceFrom, 0, 4);
    await this.#wait(fence, { byteLength: 4, isQuiet: options.isQuiet, done: () => {} });
  }

  #wait(
    { staging, serial }: { readonly staging: GPUBuffer; readonly serial: number },
    job: Pick<WaitJob, 'byteLength' | 'isQuiet' | 'done'>,
  ): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#waiter.add({
        ...job,
        staging,
        serial,
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

  trace(sink: BackendTraceSink | undefined): void {
    this.recorder.submit();
    this.#sink = sink;
    const old = this.#timestamps;
    // Its last submit may still resolve into it.
    if (old !== undefined) {
      void this.#waiter.idle().then(() => old.destroy());
    }
    this.#timestamps = sink && this.timestampsFor(sink, { isByKernel: true });
    this.recorder.timestamps = this.#timestamps;
  }

  /** The times of passes, for a sink; undefined where the device has no timestamps. */
  timestampsFor(
    sink: BackendTraceSink,
    { isByKernel }: { readonly isByKernel: boolean },
  ): Timestamps | undefined {
    if (!this.#device.features.has('timestamp-query')) {
      return undefined;
    }
    return new Timestamps(this.#device, {
      isByKernel,
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
    this.recorder.submit();
    this.#fault.raise(new DisposedError('webgpu: the device was disposed.'));
    await this.#waiter.idle();
    // Destroying a device that still computes aborts the process on some drivers.
    await this.#device.queue.onSubmittedWorkDone().catch(() => {});
    await this.#fault.settled();
    await this.#uploads.settled();
    this.#timestamps?.destroy();
    const { allocations, scratch, recorder } = this;
    for (const owner of [allocations, this.#uploads, this.#downloads, scratch, recorder]) {
      owner.destroy();
    }
    this.#fenceFrom.destroy();
    if (this.#ownsDevice) {
      this.#device.destroy();
    }
  }

  #traceStaging(name: string, startMs: number | undefined, bytes: number): void {
    if (startMs !== undefined) {
      this.#sink?.({ name, track: 'staging', startMs, endMs: performance.now(), bytes });
    }
  }
}
