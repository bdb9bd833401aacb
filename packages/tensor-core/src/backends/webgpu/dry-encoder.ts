// Encodes nothing: kernels that run over it take and give back the scratch that they would need, so
// that a dry run of a step counts it. It knows which kernels they were, so that these can be compiled ahead.

import type { Scratch } from '../../backend.js';
import { clashesOf, wordsOf } from './clashes.js';
import type { KernelEncoder, ScratchSlot } from './context.js';
import type { Kernel } from './kernel.js';
import type { CompiledKernel } from './pipelines.js';

export class DryEncoder implements KernelEncoder {
  readonly #slot: ScratchSlot;
  readonly #kernels = new Map<string, CompiledKernel>();
  #fresh = new Map<string, Kernel>();

  constructor(slot: ScratchSlot) {
    this.#slot = slot;
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

  dispatch({ kernel }: CompiledKernel, { views }: Parameters<KernelEncoder['dispatch']>[1]): void {
    const taken = clashesOf(kernel, views).map((i) =>
      this.#slot.current.take(wordsOf(views[i]!).bytes),
    );
    for (const buffer of taken) {
      this.#slot.current.give(buffer);
    }
  }

  upload(): void {}
}

/** Tables stay with the backend for good, so a dry run has none of its own. */
export const NO_TABLES: Scratch = {
  take: (byteLength) => ({ id: -1, byteLength }),
  give: () => {},
};
