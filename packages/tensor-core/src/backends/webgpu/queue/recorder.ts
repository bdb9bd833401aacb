// The command stream: one open encoder and, as long as nothing forces a boundary, one open compute
// pass. Calls are cut to what the device and a submit can take.

import { byteSize } from '@shardweave/dtypes';
import { LimitError } from '../../../errors.js';
import type { View } from '../../../view.js';
import { BINDING_ALIGNMENT, clashesOf, wordsOf } from '../kernel/clashes.js';
import { FLOPS_PER_BYTE, type GridPart, partsOfGrid } from '../kernel/cut-grid.js';
import type { Grid } from '../kernel/kernel.js';
import type { Allocations } from './allocations.js';
import { BindGroups, type BoundRange } from './bind-groups.js';
import type { ScratchSlot } from './context.js';
import { asGpuBuffer, type WebGpuBuffer } from './gpu-buffer.js';
import { ParamBuffer } from './param-buffer.js';
import type { CompiledKernel } from './pipelines.js';
import type { DownloadPool, UploadRing } from './staging.js';
import type { SubmitBudget } from './submit-budget.js';
import type { Timestamps } from './timestamps.js';

export interface Dispatch {
  /**
   * The parameters by their names in the kernel's spec, or all of them in its order. Offsets of
   * views are filled in.
   */
  readonly params: Readonly<Record<string, number>> | readonly number[];
  /** The operands in the order of the kernel's bindings. */
  readonly views: readonly View[];
  readonly grid: Grid;
  /**
   * An estimate of floating-point operations. By default it follows from the bytes of the views.
   */
  readonly flops?: number;
  /**
   * Returns the operations if each workgroup along x took as long as the longest. The parts of a
   * cut along x count by it. The default is `flops`: all take equally long.
   */
  longestFlops?(): number;
  /**
   * The nanoseconds of the lane that has most to do, by the model of lane-time.ts, for kernels
   * whose lanes loop over what can be long.
   */
  readonly laneNs?: number;
  /**
   * Returns the bytes that are read and written, each once, for kernels whose views span more than
   * that. The default are those of the views. It is called only when somebody counts.
   */
  moved?(): { readonly read: number; readonly written: number };
}

/** A call whose views are those that are bound, each with its range. */
export interface BoundCall extends Pick<Dispatch, 'params' | 'views'> {
  readonly ranges: readonly BoundRange[];
}

/**
 * The most dispatches of a submit, which take 0.4 ms to encode: the device starts early, while the
 * host goes on.
 */
const DISPATCH_BUDGET = 128;

export interface RecorderParts {
  readonly uploads: UploadRing;
  readonly downloads: DownloadPool;
  readonly scratch: ScratchSlot;
  readonly allocations: Allocations;
  readonly maxBindingBytes: number;
  readonly budget: SubmitBudget;
}

export class Recorder {
  readonly #device: GPUDevice;
  readonly #parts: RecorderParts;
  readonly #params: ParamBuffer;
  readonly bindGroups: BindGroups;
  #encoder: GPUCommandEncoder | undefined;
  #pass: GPUComputePassEncoder | undefined;
  #numInSubmit = 0;
  #flopsInSubmit = 0;
  #serial = 0;
  #dying: GPUBuffer[] = [];
  /** The timestamps of the profiler or stopwatch that is active at the moment. */
  timestamps: Timestamps | undefined;

  constructor(device: GPUDevice, parts: RecorderParts) {
    this.#device = device;
    this.#parts = parts;
    parts.allocations.lastRecorded = () => (this.isEmpty ? this.#serial : this.openSerial);
    this.#params = new ParamBuffer(device, DISPATCH_BUDGET);
    this.bindGroups = new BindGroups(device, this.#params.uniform);
  }

  /** The number of the submit that will contain what is recorded now. It counts from 1. */
  get openSerial(): number {
    return this.#serial + 1;
  }

  get isEmpty(): boolean {
    return this.#encoder === undefined;
  }

  /** Records a call, in as many dispatches and submits as its operations take. */
  dispatch(compiled: CompiledKernel, call: Dispatch): void {
    const isolated = this.#isolate(compiled, call.views);
    const { views } = isolated;
    const { flops = FLOPS_PER_BYTE * bytesOf(views) } = call;
    const maxFlops = this.#parts.budget.flops;
    try {
      const ranges = views.map((view) =>
        rangeOf(view, compiled.kernel.label, this.#parts.maxBindingBytes),
      );
      for (const part of partsOfGrid(compiled.kernel, call, { flops, maxFlops })) {
        this.#dispatchPart(compiled, { params: call.params, views, ranges }, part);
      }
    } catch (error) {
      isolated.release?.();
      throw error;
    }
    isolated.finish?.();
    if (this.#numInSubmit === DISPATCH_BUDGET) {
      this.submit();
    }
  }

  #dispatchPart(
    { kernel, layout, pipeline }: CompiledKernel,
    call: BoundCall,
    part: GridPart,
  ): void {
    const { grid, flops } = part;
    const isFull =
      this.#numInSubmit === DISPATCH_BUDGET ||
      this.#flopsInSubmit + flops > this.#parts.budget.flops;
    if (this.#numInSubmit > 0 && isFull) {
      this.submit();
    }
    const offset = this.#params.put(this.#numInSubmit, kernel, call, part.first);
    const group = this.bindGroups.get(layout, kernel.layoutKey, call.ranges, (encode) =>
      this.#parts.allocations.guard(this.openSerial, encode),
    );
    const pass = this.#openPass(kernel.label);
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, group, [offset]);
    pass.dispatchWorkgroups(grid[0], grid[1], grid[2]);
    if (this.timestamps?.isByKernel === true) {
      this.#endPass();
    }
    this.#numInSubmit += 1;
    this.#flopsInSubmit += flops;
  }

  copy(from: GPUBuffer, fromOffset: number, to: GPUBuffer, toOffset: number, bytes: number): void {
    if (bytes > 0) {
      this.#openEncoder().copyBufferToBuffer(from, fromOffset, to, toOffset, bytes);
    }
  }

  upload(to: GPUBuffer, toOffset: number, bytes: Uint8Array): void {
    if (bytes.byteLength === 0) {
      return;
    }
    const { source, sourceOffset } = this.#parts.uploads.stage(bytes);
    this.copy(source, sourceOffset, to, toOffset, bytes.byteLength);
  }

  /** Copies to a read-back buffer and submits. */
  download(
    from: GPUBuffer,
    fromOffset: number,
    bytes: number,
  ): { staging: GPUBuffer; serial: number } {
    const staging = this.#parts.downloads.take(bytes);
    this.copy(from, fromOffset, staging, 0, bytes);
    return { staging, serial: this.submit() };
  }

  /** Destroys a buffer once nothing unsubmitted uses it. */
  destroyLater(buffer: GPUBuffer, id: number): void {
    this.bindGroups.forget(id);
    if (this.isEmpty) {
      buffer.destroy();
    } else {
      this.#dying.push(buffer);
    }
  }

  /** Hands recorded commands to the device. Returns the number of the last submit. */
  submit(): number {
    const encoder = this.#encoder;
    if (encoder === undefined) {
      return this.#serial;
    }
    this.#endPass();
    const serial = this.openSerial;
    const timestamps = this.timestamps?.resolve(encoder);
    this.#params.upload(this.#numInSubmit);
    this.#parts.uploads.close(serial);
    this.#parts.allocations.guard(serial, () => this.#device.queue.submit([encoder.finish()]));
    this.#parts.budget.submitted(serial, this.#flopsInSubmit);
    this.#encoder = undefined;
    this.#numInSubmit = 0;
    this.#flopsInSubmit = 0;
    this.#serial = serial;
    for (const buffer of this.#dying) {
      buffer.destroy();
    }
    this.#dying = [];
    timestamps?.submitted(serial);
    return serial;
  }

  destroy(): void {
    this.#pass = undefined;
    this.#encoder = undefined;
    this.#params.destroy();
    for (const buffer of this.#dying) {
      buffer.destroy();
    }
    this.#dying = [];
  }

  #openEncoder(): GPUCommandEncoder {
    this.#endPass();
    this.#encoder ??= this.#device.createCommandEncoder({ label: 'shardweave' });
    return this.#encoder;
  }

  #openPass(label: string): GPUComputePassEncoder {
    if (this.#pass !== undefined) {
      return this.#pass;
    }
    const encoder = this.#openEncoder();
    const timestampWrites = this.timestamps?.next(label);
    this.#pass = encoder.beginComputePass(timestampWrites ? { label, timestampWrites } : { label });
    return this.#pass;
  }

  #endPass(): void {
    this.#pass?.end();
    this.#pass = undefined;
  }

  /** Puts scratch copies in place of views that clash with an output's buffer. */
  #isolate(
    { kernel }: CompiledKernel,
    views: readonly View[],
  ): { views: readonly View[]; finish?: () => void; release?: () => void } {
    const replaced = clashesOf(kernel, views);
    if (replaced.length === 0) {
      return { views };
    }
    const source = this.#parts.scratch.current;
    const copies = views.slice();
    const copyBacks: (() => void)[] = [];
    const taken: WebGpuBuffer[] = [];
    for (const i of replaced) {
      const view = views[i]!;
      const from = asGpuBuffer(view.buffer);
      const { start, bytes } = wordsOf(view);
      const scratch = asGpuBuffer(source.take(bytes));
      this.copy(from.gpu, start, scratch.gpu, 0, bytes);
      copies[i] = { ...view, buffer: scratch, byteOffset: view.byteOffset - start };
      taken.push(scratch);
      if (kernel.bindings[i]!.access === 'read_write') {
        copyBacks.push(() => this.copy(scratch.gpu, 0, from.gpu, start, bytes));
      }
    }
    const release = () => {
      for (const scratch of taken) {
        source.give(scratch);
      }
    };
    return { views: copies, finish: () => runAll([...copyBacks, release]), release };
  }
}

/** The range in which a view is bound: from an aligned byte on, in whole words. */
function rangeOf(view: View, label: string, maxBytes: number): BoundRange {
  const buffer = asGpuBuffer(view.buffer);
  const offset = view.byteOffset - (view.byteOffset % BINDING_ALIGNMENT);
  const end = view.byteOffset + view.size * byteSize(view.dtype);
  const size = Math.max(4, Math.min(Math.ceil(end / 4) * 4, buffer.byteLength) - offset);
  if (size > maxBytes) {
    throw new LimitError(
      `${label}: expected a view of at most ${maxBytes} bytes, got ${size}. The device binds no more at once.`,
      { requestedBytes: size, limitBytes: maxBytes },
    );
  }
  return { id: buffer.id, gpu: buffer.gpu, offset, size };
}

function bytesOf(views: readonly View[]): number {
  return views.reduce((sum, { dtype, size }) => sum + size * byteSize(dtype), 0);
}

function runAll(actions: readonly (() => void)[]): void {
  for (const action of actions) {
    action();
  }
}
