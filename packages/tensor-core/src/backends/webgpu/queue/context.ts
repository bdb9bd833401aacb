// What the functions that encode kernels work with: compiled kernels, dispatches, scratch views,
// windows of views that are larger than a binding, and the kind of the device.

import { byteSize, type DType } from '@shardweave/dtypes';
import type { Scratch } from '../../../backend.js';
import { LimitError } from '../../../errors.js';
import type { View } from '../../../view.js';
import { BINDING_ALIGNMENT } from '../kernel/clashes.js';
import type { Kernel } from '../kernel/kernel.js';
import type { MatmulChoices } from '../kernel/matmul-choices.js';
import type { MatrixUnit } from '../kernel/matrix-unit.js';
import type { CompiledKernel } from './pipelines.js';
import type { Dispatch } from './recorder.js';

/**
 * What kernels may know of the device. How much work a submit holds is not among it: that follows
 * the clock, and the bits of a result must not.
 */
export interface DeviceProfile {
  /**
   * Whether it is a driver that runs on the CPU. It takes a minute to compile the products and the
   * attention of hardware, so these have other kernels there.
   */
  readonly isSoftware: boolean;
  /** The number of invocations of a subgroup, or undefined where subgroups differ. */
  readonly subgroupSize: number | undefined;
  /** Whether shaders may read f16 as such. */
  readonly hasShaderF16: boolean;
  /** What the matrix units multiply, or undefined where kernels cannot use any. */
  readonly matrixUnit: MatrixUnit | undefined;
  readonly maxBindingBytes: number;
  readonly maxInvocations: number;
  readonly maxWorkgroupBytes: number;
}

/** A table of words on the device, and where each of its parts ends. */
export interface Table {
  readonly view: View;
  readonly ends: readonly number[];
}

/**
 * The most tables, which is more than one for each flat parameter or bucket of a model. It guards
 * against callers whose arrays are new in every step.
 */
const MAX_TABLES = 4096;

/** What takes the commands of kernels: the device's recorder, or the encoder of a dry run. */
export interface KernelEncoder {
  /** The compiled kernel of a spec, which `key` names completely. */
  kernel(key: string, build: () => Kernel): CompiledKernel;
  dispatch(compiled: CompiledKernel, call: Dispatch): void;
  /** Uploads words to a view, in order with the commands. */
  upload(view: View, bytes: Uint8Array): void;
}

/**
 * The scratch of the kernel that is being encoded. It is set around each kernel, which works
 * because encoding never waits.
 */
export class ScratchSlot {
  readonly #own: Scratch;
  #current: Scratch;

  /** @param own the scratch of kernels for which nobody else provides any */
  constructor(own: Scratch) {
    this.#own = own;
    this.#current = own;
  }

  get current(): Scratch {
    return this.#current;
  }

  /** Runs `encode`, whose kernels take their scratch from `scratch`. */
  provide(scratch: Scratch | undefined, encode: () => void): void {
    this.#current = scratch ?? this.#own;
    try {
      encode();
    } finally {
      this.#current = this.#own;
    }
  }
}

export interface KernelContextParts {
  readonly encoder: KernelEncoder;
  readonly scratch: Pick<ScratchSlot, 'current'>;
  /** Where tables lie, which outlive the kernels that they were made for. */
  readonly tableMemory: Scratch;
  readonly matmulChoices: MatmulChoices;
}

export class KernelContext {
  readonly profile: DeviceProfile;
  readonly matmulChoices: MatmulChoices;
  readonly #parts: KernelContextParts;
  readonly #tables = new Map<object, Table>();

  constructor(profile: DeviceProfile, parts: KernelContextParts) {
    this.profile = profile;
    this.matmulChoices = parts.matmulChoices;
    this.#parts = parts;
  }

  /** The compiled kernel of a spec, which `key` names completely. */
  kernel(key: string, build: () => Kernel): CompiledKernel {
    return this.#parts.encoder.kernel(key, build);
  }

  dispatch(compiled: CompiledKernel, call: Dispatch): void {
    this.#parts.encoder.dispatch(compiled, call);
  }

  /** Runs `body`, which only encodes, with a temporary view of undefined contents. */
  withScratch(dtype: DType, size: number, body: (view: View) => void): void {
    const byteLength = Math.ceil((size * byteSize(dtype)) / 4) * 4;
    const scratch = this.#parts.scratch.current;
    const buffer = scratch.take(byteLength);
    try {
      body({ buffer, byteOffset: 0, dtype, size });
    } finally {
      scratch.give(buffer);
    }
  }

  /**
   * Returns the table of words that belongs to a host array, which must not change. It is uploaded
   * when first asked for. The least recently made tables go when there are many.
   */
  table(owner: object, build: () => { words: Uint32Array; ends: readonly number[] }): Table {
    const known = this.#tables.get(owner);
    if (known !== undefined) {
      if (known.view.buffer.isLost !== true) {
        return known;
      }
      this.#tables.delete(owner);
      this.#parts.tableMemory.give(known.view.buffer);
    }
    if (this.#tables.size >= MAX_TABLES) {
      const [oldest, { view }] = this.#tables.entries().next().value!;
      this.#tables.delete(oldest);
      this.#parts.tableMemory.give(view.buffer);
    }
    const { words, ends } = build();
    const buffer = this.#parts.tableMemory.take(Math.max(4, words.byteLength));
    const view: View = { buffer, byteOffset: 0, dtype: 'u32', size: Math.max(1, words.length) };
    this.upload(view, new Uint8Array(words.buffer));
    const table = { view, ends };
    this.#tables.set(owner, table);
    return table;
  }

  /** Uploads words to a view, in order with the commands. */
  upload(view: View, bytes: Uint8Array): void {
    this.#parts.encoder.upload(view, bytes);
  }

  /**
   * Returns the most units of `unitElements` elements whose views of these dtypes bind at once,
   * wherever they start. It is a multiple of `multiple`.
   * @throws {LimitError} where not even `multiple` units fit
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
    if (units > 0) {
      return units;
    }
    throw new LimitError(
      `${op}: expected rows of at most ${bytes} bytes, got ${widest * unitElements * multiple}. The device binds no more at once.`,
      { requestedBytes: widest * unitElements * multiple, limitBytes: bytes },
    );
  }

  /** The most elements of a dtype that bind at once, wherever they start. */
  windowElements(dtype: DType): number {
    return Math.floor((this.profile.maxBindingBytes - BINDING_ALIGNMENT) / byteSize(dtype));
  }

  /** Whether each of the views binds as a whole. */
  fits(views: readonly View[]): boolean {
    return views.every(({ dtype, size }) => size <= this.windowElements(dtype));
  }
}

/** Returns the view of `length` elements from `start` on. */
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
