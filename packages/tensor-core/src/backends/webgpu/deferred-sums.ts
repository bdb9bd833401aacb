// Sums of partial results that wait for each other. A product whose k is cut, or a norm's parameter
// gradients, leave parts in scratch that one more small dispatch adds up. In a training step nobody
// reads those gradients for a long time, so the sums of several kernels wait and then share one
// dispatch. They run before anything that reads or writes one of their outputs, and before the
// queue is handed to somebody who could.

import type { BackendBuffer, View } from '../../view.js';
import { wordsOf } from './clashes.js';

/** out[i] = parts[first + i] + parts[first + stride + i] + ..., all in f32, `numParts` terms. */
export interface PartSum {
  /** Element of the parts at which the first term of out[0] lies. */
  readonly first: number;
  /** Elements between the terms of one sum. */
  readonly stride: number;
  readonly numParts: number;
  /** f32; its size is the number of sums. */
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
  readonly sums: readonly (PartSum & {
    readonly part: number;
    readonly into: number;
    readonly at: number;
  })[];
}

/** The storage buffers that WebGPU's default limits let a kernel bind. */
const MAX_BINDINGS = 8;
/** As many as have room in the parameters of one dispatch, beside the offsets of its views. */
export const MAX_SUMS = 8;
/**
 * The most bytes of parts that wait at once. GPT-2 124M has 17 MiB of them in a layer, and larger
 * layers have no more, because a product with many tiles is not cut.
 */
const MAX_WAITING_BYTES = 32 * 2 ** 20;
const F32_BYTES = 4;

export class DeferredSums {
  readonly #maxBindingBytes: number;
  #queue: (batch: SumBatch) => void = () => {};
  #waiting: PartSums[] = [];
  #numSums = 0;
  #bytes = 0;
  /** Where outputs lie, by buffer, in the order in which the buffers came. */
  #outs = new Map<BackendBuffer, View>();

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
      const known = this.#outs.get(out.buffer);
      this.#outs.set(out.buffer, known === undefined ? out : spanning(known, out));
    }
  }

  /** Queues the waiting sums if a command over these views must come after one of them. */
  before(views: readonly View[]): void {
    if (this.#waiting.length > 0 && views.some((view) => this.#isOutput(view))) {
      this.settle();
    }
  }

  /** Queues all waiting sums. */
  settle(): void {
    const waiting = this.#waiting;
    if (waiting.length === 0) {
      return;
    }
    const batch = batchOf(waiting, this.#outs);
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
      .map((each) => ({ ...each, sums: each.sums.filter(({ out }) => out.buffer !== buffer) }));
    const queue = this.#queue;
    this.#clear();
    for (const each of left) {
      this.add(each, queue);
    }
  }

  #clear(): void {
    this.#waiting = [];
    this.#outs = new Map();
    this.#numSums = 0;
    this.#bytes = 0;
  }

  #isOutput(view: View): boolean {
    const all = this.#outs.get(view.buffer);
    if (all === undefined || !overlaps(view, all)) {
      return false;
    }
    const isTouched = ({ out }: PartSum) => out.buffer === view.buffer && overlaps(view, out);
    return this.#waiting.some(({ sums }) => sums.some(isTouched));
  }

  #hasRoom({ parts, sums }: PartSums): boolean {
    const fresh = new Set<BackendBuffer>();
    for (const { out } of sums) {
      const known = this.#outs.get(out.buffer);
      if (known === undefined) {
        fresh.add(out.buffer);
      } else if (F32_BYTES * spanning(known, out).size > this.#maxBindingBytes) {
        return false;
      }
    }
    return (
      this.#waiting.length + 1 + this.#outs.size + fresh.size <= MAX_BINDINGS &&
      this.#numSums + sums.length <= MAX_SUMS &&
      this.#bytes + F32_BYTES * parts.size <= MAX_WAITING_BYTES &&
      !sums.some(({ out }) => this.#isOutput(out))
    );
  }
}

function batchOf(waiting: readonly PartSums[], outs: ReadonlyMap<BackendBuffer, View>): SumBatch {
  const buffers = [...outs.keys()];
  const sums = waiting.flatMap((each, part) =>
    each.sums.map((sum) => {
      const { buffer, byteOffset } = sum.out;
      const at = (byteOffset - outs.get(buffer)!.byteOffset) / F32_BYTES;
      return { ...sum, part, into: buffers.indexOf(buffer), at };
    }),
  );
  return { parts: waiting.map(({ parts }) => parts), outs: [...outs.values()], sums };
}

/** The f32 view from the first element of both to the last. */
function spanning(a: View, b: View): View {
  const byteOffset = Math.min(a.byteOffset, b.byteOffset);
  const end = Math.max(endOf(a), endOf(b));
  return { ...a, byteOffset, size: (end - byteOffset) / F32_BYTES };
}

function endOf(view: View): number {
  const { start, bytes } = wordsOf(view);
  return start + bytes;
}

function overlaps(a: View, b: View): boolean {
  return a.byteOffset < endOf(b) && b.byteOffset < endOf(a);
}
