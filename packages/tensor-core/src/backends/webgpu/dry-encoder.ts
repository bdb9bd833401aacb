// Encodes nothing: kernels that run over it take and give back the scratch that they would need, so
// that a dry run of a step counts it.

import type { Scratch } from '../../backend.js';
import { clashesOf, wordsOf } from './clashes.js';
import type { KernelEncoder, ScratchSlot } from './context.js';
import type { Kernel } from './kernel.js';
import type { CompiledKernel } from './pipelines.js';

export class DryEncoder implements KernelEncoder {
  readonly #slot: ScratchSlot;
  readonly #kernels = new Map<string, CompiledKernel>();

  constructor(slot: ScratchSlot) {
    this.#slot = slot;
  }

  kernel(key: string, build: () => Kernel): CompiledKernel {
    let known = this.#kernels.get(key);
    if (known === undefined) {
      known = { kernel: build() } as CompiledKernel; // nobody runs it
      this.#kernels.set(key, known);
    }
    return known;
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
