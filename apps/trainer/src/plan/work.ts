// What a device would compute: multiplications of its products, and the bytes that all else reads and writes.

import {
  byteSize,
  type DryBackendOptions,
  type KernelCalls,
  type KernelName,
  type View,
} from '@shardweave/tensor-core';

/** Products of backward's five to those of forward's two; see AttentionOperands. */
const ATTENTION_PRODUCTS = 2;
const ATTENTION_BACKWARD_PRODUCTS = 5;

/** Counts of one step. */
export interface WorkCounts {
  /** Multiplications, each with its addition. */
  readonly products: number;
  /** The same inside attention, whose blocks are smaller. */
  readonly attentionProducts: number;
  /** Bytes that kernels without products read and write. */
  readonly touchedBytes: number;
  /** Bytes between host and device. */
  readonly copiedBytes: number;
  readonly kernels: number;
}

export class Work implements DryBackendOptions {
  readonly #counts = {
    products: 0,
    attentionProducts: 0,
    touchedBytes: 0,
    copiedBytes: 0,
    kernels: 0,
  };

  /** So far. */
  counts(): WorkCounts {
    return { ...this.#counts };
  }

  onCopy(byteLength: number): void {
    this.#counts.copiedBytes += byteLength;
  }

  onKernel<K extends KernelName>(kernel: K, call: KernelCalls[K]): void {
    this.#counts.kernels += 1;
    if (kernel === 'matmul') {
      const { m, n, k, batch } = call as KernelCalls['matmul'];
      this.#counts.products += m * n * k * batch[0] * batch[1];
    } else if (kernel === 'attention' || kernel === 'attentionBackward') {
      const times = kernel === 'attention' ? ATTENTION_PRODUCTS : ATTENTION_BACKWARD_PRODUCTS;
      this.#counts.attentionProducts += times * attentionPairs(call as KernelCalls['attention']);
    } else {
      this.#counts.touchedBytes += viewBytes(Object.values(call));
    }
  }
}

/** Products of one pass over all pairs of a query and a key that it may see. */
function attentionPairs(call: KernelCalls['attention']): number {
  const { batch, numHeads, numQueries, numKeys, dim, isCausal, window } = call;
  const seen = Math.min(isCausal ? (numKeys + 1) / 2 : numKeys, window > 0 ? window : numKeys);
  return batch * numHeads * numQueries * seen * dim;
}

function viewBytes(values: readonly unknown[]): number {
  return values.reduce<number>((sum, value) => {
    if (Array.isArray(value)) {
      return sum + viewBytes(value);
    }
    return isView(value) ? sum + value.size * byteSize(value.dtype) : sum;
  }, 0);
}

function isView(value: unknown): value is View {
  return typeof value === 'object' && value !== null && 'buffer' in value && 'dtype' in value;
}
