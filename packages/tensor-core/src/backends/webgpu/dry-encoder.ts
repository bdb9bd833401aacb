// The encoder of a dry run, which encodes nothing. Kernels take and give back the scratch that they
// would need, so that a dry run of a step counts it. The encoder knows which kernels they were, so
// that these can be compiled ahead, and tells who asks what each dispatch would compute and move.

import { byteSize } from '@shardweave/dtypes';
import type { Scratch } from '../../backend.js';
import { clashesOf, wordsOf } from './kernel/clashes.js';
import { FLOPS_PER_BYTE, partsOfGrid } from './kernel/cut-grid.js';
import type { Kernel } from './kernel/kernel.js';
import type { KernelEncoder, ScratchSlot } from './queue/context.js';
import type { CompiledKernel } from './queue/pipelines.js';
import type { Dispatch } from './queue/recorder.js';

/**
 * What a dispatch would be, after cutting those beyond a budget of operations. The budget is
 * `maxFlops` where that was given, else 50e9 whatever the device's measured speed is, so that a
 * plan is the same each time.
 */
export interface PlannedDispatch {
  readonly kernel: string;
  readonly workgroups: number;
  readonly invocations: number;
  /**
   * Floating-point operations that the kernel estimates; undefined where it is a matter of bytes
   * alone.
   */
  readonly flops: number | undefined;
  /**
   * The milliseconds of the lane that has most to do, by a model of slow GPUs; undefined for
   * kernels whose lanes all do little. Cutting shortens no lane.
   */
  readonly laneMs: number | undefined;
  /**
   * Bytes of the operands, each once; `written` are those of outputs, which some kernels read,
   * too.
   */
  readonly bytesRead: number;
  readonly bytesWritten: number;
}

export class DryEncoder implements KernelEncoder {
  /** Is called with each dispatch, where somebody asked. */
  onDispatch: ((dispatch: PlannedDispatch) => void) | undefined;
  readonly #slot: ScratchSlot;
  readonly #maxFlops: number;
  readonly #kernels = new Map<string, CompiledKernel>();
  #fresh = new Map<string, Kernel>();

  constructor(slot: ScratchSlot, maxFlops: number) {
    this.#slot = slot;
    this.#maxFlops = maxFlops;
  }

  kernel(key: string, build: () => Kernel): CompiledKernel {
    let known = this.#kernels.get(key);
    if (known === undefined) {
      known = { kernel: build() } as CompiledKernel; // nobody runs it
      this.#kernels.set(key, known);
      this.#fresh.set(key, known.kernel);
    }
    return known;
  }

  /** The kernels by key that were met since this was asked last, and never before. */
  takeFresh(): ReadonlyMap<string, Kernel> {
    const fresh = this.#fresh;
    this.#fresh = new Map();
    return fresh;
  }

  dispatch({ kernel }: CompiledKernel, call: Dispatch): void {
    const { views } = call;
    if (this.onDispatch !== undefined) {
      planned(kernel, call, this.#maxFlops).forEach(this.onDispatch);
    }
    const taken = clashesOf(kernel, views).map((i) =>
      this.#slot.current.take(wordsOf(views[i]!).bytes),
    );
    for (const buffer of taken) {
      this.#slot.current.give(buffer);
    }
  }

  upload(): void {}
}

function planned(kernel: Kernel, call: Dispatch, maxFlops: number): PlannedDispatch[] {
  const bytesOf = (access: 'read' | 'read_write') =>
    call.views.reduce((sum, { dtype, size }, i) => {
      return sum + (kernel.bindings[i]!.access === access ? size * byteSize(dtype) : 0);
    }, 0);
  const { flops, laneNs } = call;
  const moved = call.moved?.();
  const bytesRead = moved?.read ?? bytesOf('read');
  const bytesWritten = moved?.written ?? bytesOf('read_write');
  const estimate = flops ?? FLOPS_PER_BYTE * (bytesRead + bytesWritten);
  const parts = partsOfGrid(kernel, call, { flops: estimate, maxFlops });
  const counted = parts.reduce((sum, part) => sum + part.flops, 0);
  return parts.map((part) => {
    const share = part.flops / counted;
    const workgroups = part.grid[0] * part.grid[1] * part.grid[2];
    const [x, y, z] = kernel.workgroupSize;
    return {
      kernel: kernel.label,
      workgroups,
      invocations: workgroups * x * y * z,
      flops: flops === undefined ? undefined : part.flops,
      laneMs: laneNs === undefined ? undefined : laneNs / 1e6,
      bytesRead: bytesRead * share,
      bytesWritten: bytesWritten * share,
    };
  });
}

/** Tables stay with the backend for good, so a dry run has none of its own. */
export const NO_TABLES: Scratch = {
  take: (byteLength) => ({ id: -1, byteLength }),
  give: () => {},
};
