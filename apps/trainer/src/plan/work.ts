// Counts what a device would do: kernels, listed by kind and shape where they are to be timed, and
// bytes from and to the host.

import type { DryBackendOptions, KernelCalls, KernelName } from '@shardweave/tensor-core';
import { type KernelTally, keyOfCall, type TalliedCall } from './kernel-times.js';

/** The counts of one step. */
export interface WorkCounts {
  /** The bytes copied between host and device. */
  readonly copiedBytes: number;
  readonly kernels: number;
}

export class Work implements DryBackendOptions {
  readonly #tally: Map<string, TalliedCall> | undefined;
  readonly #counts = { copiedBytes: 0, kernels: 0 };

  /** @param options.isTallied whether the calls are listed, to be timed; default false */
  constructor({ isTallied = false }: { readonly isTallied?: boolean } = {}) {
    this.#tally = isTallied ? new Map() : undefined;
  }

  /** The calls so far by kind and shape; empty where they are not listed. */
  tally(): KernelTally {
    return new Map(this.#tally);
  }

  /** The counts so far. */
  counts(): WorkCounts {
    return { ...this.#counts };
  }

  onCopy(byteLength: number): void {
    this.#counts.copiedBytes += byteLength;
  }

  onKernel<K extends KernelName>(kernel: K, call: KernelCalls[K]): void {
    this.#counts.kernels += 1;
    if (this.#tally !== undefined) {
      const key = keyOfCall(kernel, call);
      const count = (this.#tally.get(key)?.count ?? 0) + 1;
      this.#tally.set(key, { kernel, call, count });
    }
  }
}
