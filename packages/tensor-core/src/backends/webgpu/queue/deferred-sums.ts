// Sums of partial results that wait for each other. A product whose k is cut, or a norm's parameter
// gradients, leave parts in scratch that one more small dispatch adds up. In a training step nobody
// reads those gradients for a long time, so the sums of several kernels wait and then share one
// dispatch. They run before anything that reads or writes one of their outputs, and before the
// queue is handed to a caller who could.

import { byteSize } from '@shardweave/dtypes';
import type { BackendBuffer, View } from '../../../view.js';

/** out[i] = parts[first + i] + parts[first + stride + i] + ..., all in f32, `numParts` terms. */
export interface PartSum {
  /** The element of the parts at which the first term of out[0] lies. */
  readonly first: number;
  /** The elements from one term of a sum to the next. */
  readonly stride: number;
  readonly numParts: number;
  /** Where the sums are stored, in f32. Its size is the number of sums. */
  readonly out: View;
}

/** The sums over one scratch buffer. */
export interface PartSums {
  readonly parts: View;
  readonly sums: readonly PartSum[];
  /** Gives the scratch of the parts back, once the sums are queued. */
  give(): void;
}

/** The sums of one dispatch, and what it binds. */
export interface SumBatch {
  readonly parts: readonly View[];
  /** One view for each buffer that has outputs in it, from the first of them to the last. */
  readonly outs: readonly View[];
  /** `part` and `into` are indices of `parts` and `outs`; `at` is an element of that output. */
  readonly sums: readonly {
    readonly sum: PartSum;
    readonly part: number;
    readonly into: number;
    readonly at: number;
  }[];
}

/** The storage buffers that WebGPU's default limits let a kernel bind. */
const MAX_BINDINGS = 8;
/** The sums that have room in the parameters of one dispatch, beside the offsets of its views. */
export const MAX_SUMS = 8;
/**
 * The most bytes of parts that wait at once. GPT-2 124M has 17 MiB of them in a layer, and larger
 * layers have no more, because a product with many tiles is not cut.
 */
const MAX_WAITING_BYTES = 32 * 2 ** 20;
const F32_BYTES = 4;

/** The bytes [start, end) of a buffer, from its first waiting output to the end of its last. */
interface Range {
  start: number;
  end: number;
}

export class DeferredSums {
  readonly #maxBindingBytes: number;
  #queue: (batch: SumBatch) => void = () => {};
  #waiting: PartSums[] = [];
  #numSums = 0;
  #bytes = 0;
  /** Where outputs lie, in the order in which their buffers came. */
  readonly #ranges = new Map<BackendBuffer, Range>();

  constructor(maxBindingBytes: number) {
    this.#maxBindingBytes = maxBindingBytes;
  }

  /**
   * Has the sums wait for `before` or `settle`, which hand them to `queue`. The commands that write
   * the parts must be queued already.
   */
  add(added: PartSums, queue: (batch: SumBatch) => void): void {
    if (!this.#hasRoom(added)) {
      this.settle();
    }
    this.#queue = queue;
    this.#waiting.push(added);
    this.#numSums += added.sums.length;
    this.#bytes += F32_BYTES * added.parts.size;
    for (const { out } of added.sums) {
      const range = this.#ranges.get(out.buffer);
      const [start, end] = [out.byteOffset, endOf(out)];
      if (range === undefined) {
        this.#ranges.set(out.buffer, { start, end });
      } else {
        range.start = Math.min(range.start, start);
        range.end = Math.max(range.end, end);
      }
    }
  }

  /** Queues the waiting sums if a command over these views must come after one of them. */
  before(views: readonly View[]): void {
    if (this.#waiting.length === 0) {
      return;
    }
    for (const view of views) {
      if (this.#isOutput(view)) {
        this.settle();
        return;
      }
    }
  }

  /** Queues all waiting sums. */
  settle(): void {
    const waiting = this.#waiting;
    if (waiting.length === 0) {
      return;
    }
    const batch = this.#batch();
    this.#clear();
    try {
      if (batch.sums.length > 0) {
        this.#queue(batch);
      }
    } finally {
      for (const each of waiting) {
        each.give();
      }
    }
  }

  /**
   * Drops the sums into a buffer that is freed, and those whose parts were in it. Their scratch is
   * not given back: it went with the buffer.
   */
  forget(buffer: BackendBuffer): void {
    if (this.#waiting.length === 0) {
      return;
    }
    const left = this.#waiting
      .filter(({ parts }) => parts.buffer !== buffer)
      .map((call) => ({ ...call, sums: call.sums.filter(({ out }) => out.buffer !== buffer) }));
    const queue = this.#queue;
    this.#clear();
    for (const each of left) {
      this.add(each, queue);
    }
  }

  #batch(): SumBatch {
    const buffers = [...this.#ranges.keys()];
    const outs = buffers.map((buffer): View => {
      const { start, end } = this.#ranges.get(buffer)!;
      return { buffer, byteOffset: start, dtype: 'f32', size: (end - start) / F32_BYTES };
    });
    const sums: SumBatch['sums'][number][] = [];
    this.#waiting.forEach((call, part) => {
      for (const sum of call.sums) {
        const into = buffers.indexOf(sum.out.buffer);
        const at = (sum.out.byteOffset - outs[into]!.byteOffset) / F32_BYTES;
        sums.push({ sum, part, into, at });
      }
    });
    return { parts: this.#waiting.map(({ parts }) => parts), outs, sums };
  }

  #clear(): void {
    this.#waiting = [];
    this.#ranges.clear();
    this.#numSums = 0;
    this.#bytes = 0;
  }

  #isOutput(view: View): boolean {
    const range = this.#ranges.get(view.buffer);
    const end = endOf(view);
    if (range === undefined || view.byteOffset >= range.end || end <= range.start) {
      return false;
    }
    return this.#waiting.some(({ sums }) =>
      sums.some(
        ({ out }) =>
          out.buffer === view.buffer && view.byteOffset < endOf(out) && out.byteOffset < end,
      ),
    );
  }

  #hasRoom({ parts, sums }: PartSums): boolean {
    const fresh = new Set<BackendBuffer>();
    for (const { out } of sums) {
      const range = this.#ranges.get(out.buffer);
      if (range === undefined) {
        fresh.add(out.buffer);
        continue;
      }
      const end = Math.max(range.end, endOf(out));
      if (end - Math.min(range.start, out.byteOffset) > this.#maxBindingBytes) {
        return false;
      }
    }
    return (
      this.#waiting.length + 1 + this.#ranges.size + fresh.size <= MAX_BINDINGS &&
      this.#numSums + sums.length <= MAX_SUMS &&
      this.#bytes + F32_BYTES * parts.size <= MAX_WAITING_BYTES &&
      !sums.some(({ out }) => this.#isOutput(out))
    );
  }
}

function endOf({ byteOffset, size, dtype }: View): number {
  return byteOffset + size * byteSize(dtype);
}
