// Sums parts where they lie, in a memory that threads share: nothing is copied into wasm and back,
// which is most of the RankSum's time. The bits are the RankSum's. What is not a whole vector is
// left to the RankSum.

import { byteSize } from './dtype.js';
import { wasmBase64 } from './generated/in-place-wasm.js';
import { DTYPE_CODES, OP_CODES } from './kernel-codes.js';
import type { ReduceOptions } from './reduce-plain.js';

/** A memory of several threads, and the part of it that belongs to this thread. */
export interface SharedParts {
  readonly memory: WebAssembly.Memory;
  /**
   * Whether a buffer is that memory's. The memory's `buffer` is another object after each growth.
   */
  holds(buffer: ArrayBufferLike): boolean;
  /** The address of IN_PLACE_SCRATCH_BYTES bytes that belong to this thread alone. */
  readonly scratch: number;
}

/** The number of elements of a slice: its accumulators stay in a level 2 cache. */
const SLICE_ELEMENTS = 16 * 1024;

/**
 * The bytes of scratch that each thread needs for SharedParts: the f32 accumulators of one slice.
 */
export const IN_PLACE_SCRATCH_BYTES = SLICE_ELEMENTS * 4;

/** The kernels read and write whole vectors of every dtype, which is this many elements. */
const GRAIN_ELEMENTS = 16;

interface InPlaceExports {
  start(dtype: number, acc: number, source: number, count: number): void;
  accumulate(dtype: number, op: number, acc: number, source: number, count: number): void;
  combine(dtype: number, op: number, target: number, a: number, b: number, count: number): void;
  finish(dtype: number, acc: number, target: number, count: number, divisor: number): void;
}

export class InPlaceSums {
  readonly #exports: InPlaceExports;
  readonly #shared: SharedParts;

  private constructor(exports: InPlaceExports, shared: SharedParts) {
    this.#exports = exports;
    this.#shared = shared;
  }

  static async create(shared: SharedParts): Promise<InPlaceSums> {
    const bytes = Uint8Array.from(atob(wasmBase64), (char) => char.charCodeAt(0));
    const { instance } = await WebAssembly.instantiate(bytes, { env: { memory: shared.memory } });
    return new InPlaceSums(instance.exports as unknown as InPlaceExports, shared);
  }

  /** Whether all of them lie in the memory, and there is more than one part to combine. */
  covers(parts: readonly Uint8Array[], output: Uint8Array): boolean {
    const { holds } = this.#shared;
    return parts.length > 1 && holds(output.buffer) && parts.every((part) => holds(part.buffer));
  }

  /**
   * Combines at most `elements` (a slice of the RankSum's) from element `at` on, and returns how
   * many it combined. `output` may be one of the parts: it is written last, element by element.
   */
  reduceSlice(
    parts: readonly Uint8Array[],
    output: Uint8Array,
    at: number,
    elements: number,
    { dtype, op, inputDtype = dtype, divisor = parts.length }: ReduceOptions,
  ): number {
    const count = elements - (elements % GRAIN_ELEMENTS);
    const code = DTYPE_CODES[inputDtype];
    const opCode = OP_CODES[op];
    const inputSize = byteSize(inputDtype);
    const acc = this.#shared.scratch;
    const place = (part: Uint8Array) => part.byteOffset + at * inputSize;
    const target = output.byteOffset + at * byteSize(dtype);
    const divideBy = op === 'mean' ? divisor : 1;
    const isDirect = inputSize !== 2 && byteSize(dtype) !== 2 && divideBy === 1;
    const last = parts.length - 1;
    if (inputSize === 2) {
      this.#exports.start(code, acc, place(parts[0]!), count);
      for (let rank = 1; rank <= last; rank++) {
        this.#exports.accumulate(code, opCode, acc, place(parts[rank]!), count);
      }
    } else {
      let sum = place(parts[0]!);
      for (let rank = 1; rank <= last; rank++) {
        const to = isDirect && rank === last ? target : acc;
        this.#exports.combine(code, opCode, to, sum, place(parts[rank]!), count);
        sum = to;
      }
    }
    if (!isDirect) {
      this.#exports.finish(DTYPE_CODES[dtype], acc, target, count, divideBy);
    }
    return count;
  }
}
