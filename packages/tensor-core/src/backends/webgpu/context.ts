// What kernel files get to work with: compiled kernels, dispatches, scratch views, windows of views
// that are larger than a binding, and what kind of device it is.

import { byteSize, type DType } from '@shardweave/dtypes';
import type { View } from '../../backend.js';
import { LimitError } from '../../errors.js';
import { asGpuBuffer } from './gpu-buffer.js';
import type { Kernel } from './kernel.js';
import type { MatmulChoices } from './matmul-choices.js';
import type { CompiledKernel, Pipelines } from './pipelines.js';
import { BINDING_ALIGNMENT, type Dispatch, type Recorder } from './recorder.js';
import type { ScratchPool } from './scratch.js';

export interface DeviceProfile {
  /** A driver that runs on the CPU: few long loops, no workgroup memory, no barriers. */
  readonly isSoftware: boolean;
  /** Where the device has subgroups of one fixed size. */
  readonly subgroupSize: number | undefined;
  readonly maxBindingBytes: number;
  readonly maxInvocations: number;
  readonly maxWorkgroupBytes: number;
}

/** Words on the device, and where its parts end. */
export interface Table {
  readonly view: View;
  readonly ends: readonly number[];
}

/** One per flat parameter or bucket of a model; a guard against arrays that change every step. */
const MAX_TABLES = 4096;

export class KernelContext {
  readonly profile: DeviceProfile;
  readonly matmulChoices: MatmulChoices;
  readonly #recorder: Recorder;
  readonly #pipelines: Pipelines;
  readonly #scratch: ScratchPool;
  readonly #tables = new Map<object, Table>();

  constructor(
    profile: DeviceProfile,
    parts: {
      recorder: Recorder;
      pipelines: Pipelines;
      scratch: ScratchPool;
      matmulChoices: MatmulChoices;
    },
  ) {
    this.profile = profile;
    this.matmulChoices = parts.matmulChoices;
    this.#recorder = parts.recorder;
    this.#pipelines = parts.pipelines;
    this.#scratch = parts.scratch;
  }

  /** The compiled kernel of a spec, which `key` names completely. */
  kernel(key: string, build: () => Kernel): CompiledKernel {
    return this.#pipelines.get(key, build);
  }

  dispatch(compiled: CompiledKernel, call: Dispatch): void {
    this.#recorder.dispatch(compiled, call);
  }

  /** Runs `body`, which only encodes, with a temporary view of undefined contents. */
  withScratch(dtype: DType, size: number, body: (view: View) => void): void {
    const byteLength = Math.ceil((size * byteSize(dtype)) / 4) * 4;
    const buffer = this.#scratch.take(byteLength);
    try {
      body({ buffer, byteOffset: 0, dtype, size });
    } finally {
      this.#scratch.give(buffer);
    }
  }

  /**
   * A table of words that belongs to a host array, uploaded when first asked for. The array must
   * not change. The least recently made tables go when there are many.
   */
  table(owner: object, build: () => { words: Uint32Array; ends: readonly number[] }): Table {
    const known = this.#tables.get(owner);
    if (known !== undefined) return known;
    if (this.#tables.size >= MAX_TABLES) {
      const [oldest, { view }] = this.#tables.entries().next().value!;
      this.#tables.delete(oldest);
      this.#scratch.give(asGpuBuffer(view.buffer));
    }
    const { words, ends } = build();
    const buffer = this.#scratch.take(Math.max(4, words.byteLength));
    const view: View = { buffer, byteOffset: 0, dtype: 'u32', size: Math.max(1, words.length) };
    this.upload(view, new Uint8Array(words.buffer));
    const table = { view, ends };
    this.#tables.set(owner, table);
    return table;
  }

  /** Uploads words to a view, in order with the commands. */
  upload(view: View, bytes: Uint8Array): void {
    this.#recorder.upload(asGpuBuffer(view.buffer).gpu, view.byteOffset, bytes);
  }

  /**
   * Most units of `unitElements` elements whose views of these dtypes bind at once, wherever they
   * start. A multiple of `multiple`, or LimitError where not even that many fit.
   */
  windowUnits(
    dtypes: readonly DType[],
    unitElements: number,
    options: { readonly multiple?: number; readonly op: string },
  ): number {
    const { multiple = 1, op } = options;
    const widest = Math.max(...dtypes.map(byteSize));
    const bytes = this.profile.maxBindingBytes - BINDING_ALIGNMENT;
    const units = Math.floor(bytes / (widest * unitElements * multiple)) * multiple;
    if (units > 0) return units;
    throw new LimitError(
      `${op}: expected rows of at most ${bytes} bytes, got ${widest * unitElements * multiple}. The device binds no more at once.`,
      { requestedBytes: widest * unitElements * multiple, limitBytes: bytes },
    );
  }

  /** Calls `body` with consecutive ranges of [0, size) that bind at once; starts are even. */
  eachWindow(
    views: readonly View[],
    size: number,
    body: (start: number, length: number) => void,
  ): void {
    const step = this.windowUnits(
      views.map((v) => v.dtype),
      1,
      { multiple: 4, op: 'view' },
    );
    for (let start = 0; start < size; start += step) body(start, Math.min(step, size - start));
  }
}

/** `length` elements of a view from `start`. */
export function sliceView(view: View, start: number, length: number): View {
  return {
    buffer: view.buffer,
    byteOffset: view.byteOffset + start * byteSize(view.dtype),
    dtype: view.dtype,
    size: length,
  };
}

/** Whether two views are the same elements. */
export function isSameView(a: View, b: View): boolean {
  return (
    a.buffer === b.buffer &&
    a.byteOffset === b.byteOffset &&
    a.dtype === b.dtype &&
    a.size === b.size
  );
}
