// Reduces the parts of several ranks in WebAssembly SIMD, in slices between which the event loop
// gets its turn. The result equals that of reduce-plain.ts bit for bit. Parts are copied into the
// module's memory slice by slice, so that memory stays small and the caller's buffers may be
// anywhere.

import { byteSize } from './dtype.js';
import { wasmBase64 } from './generated/wasm.js';
import { InPlaceSums, type SharedParts } from './in-place-sums.js';
import { DTYPE_CODES, OP_CODES } from './kernel-codes.js';
import { checkParts, type ReduceOptions } from './reduce-plain.js';
import { yieldToEventLoop } from './yield-to-event-loop.js';

/**
 * The elements of a slice: accumulator, part and result (12 bytes each) stay in a level 2 cache.
 */
const SLICE_ELEMENTS = 16 * 1024;

/**
 * The milliseconds before the event loop gets a turn: half of the 20 ms that no callback may
 * exceed.
 */
const TURN_MS = 8;

interface RankSumExports {
  readonly memory: WebAssembly.Memory;
  reserve(byteLength: number): number;
  start(dtype: number, acc: number, source: number, count: number): void;
  accumulate(dtype: number, op: number, acc: number, source: number, count: number): void;
  finish(dtype: number, acc: number, target: number, count: number, divisor: number): void;
}

/**
 * Combines the parts of several ranks, as bytes, in rank order: their sum, mean, largest or
 * smallest. One serves any number of ranks of a process; it holds 0.3 MiB.
 * @example
 * ```ts
 * import { fromF32Array, RankSum, toF32Array } from '@shardweave/dtypes';
 *
 * const parts = [256, 1, 3].map((x) => fromF32Array([x, -x], 'bf16'));
 * const sum = new Uint8Array(4);
 * const rankSum = await RankSum.create();
 * await rankSum.reduce(parts, sum, { dtype: 'bf16', op: 'sum' });
 * console.log(toF32Array(sum, 'bf16')); // logs Float32Array(2) [ 260, -260 ]
 * ```
 */
export class RankSum {
  readonly #exports: RankSumExports;
  readonly #memory: Uint8Array;
  readonly #acc: number;
  readonly #part: number;
  readonly #inPlace: InPlaceSums | undefined;

  private constructor(exports: RankSumExports, inPlace: InPlaceSums | undefined) {
    this.#exports = exports;
    this.#inPlace = inPlace;
    this.#acc = exports.reserve(SLICE_ELEMENTS * 4);
    this.#part = exports.reserve(SLICE_ELEMENTS * 4);
    // The view is made after both reservations, because growing a memory detaches its earlier
    // views.
    this.#memory = new Uint8Array(exports.memory.buffer);
  }

  /**
   * Compiles the embedded module, in about 5 ms. With `shared`, parts and outputs that all lie in
   * that memory are combined there, without copies.
   */
  static async create(shared?: SharedParts): Promise<RankSum> {
    const bytes = Uint8Array.from(atob(wasmBase64), (char) => char.charCodeAt(0));
    const { instance } = await WebAssembly.instantiate(bytes, {
      env: {
        abort: () => {
          throw new Error('reducer: wasm aborted. This is a bug of @shardweave/dtypes.');
        },
      },
    });
    const inPlace = shared && (await InPlaceSums.create(shared));
    return new RankSum(instance.exports as unknown as RankSumExports, inPlace);
  }

  /**
   * Combines `parts` in their order into `output`, as `reducePartsPlain` does. `output` may be one
   * of the parts. None of them may change until the promise resolves; the event loop gets a turn
   * every 8 ms.
   * @throws {RangeError} where lengths don't fit
   */
  async reduce(
    parts: readonly Uint8Array[],
    output: Uint8Array,
    options: ReduceOptions,
  ): Promise<void> {
    checkParts(parts, output, options);
    const count = output.byteLength / byteSize(options.dtype);
    const { merges } = options;
    const isInPlace = merges === undefined && this.#inPlace?.covers(parts, output);
    const inPlace = isInPlace ? this.#inPlace : undefined;
    const sliceElements = merges === undefined ? SLICE_ELEMENTS : slotElements(merges);
    let turnEnd = performance.now() + TURN_MS;
    for (let at = 0; at < count; at += sliceElements) {
      if (at > 0 && performance.now() > turnEnd) {
        await yieldToEventLoop();
        turnEnd = performance.now() + TURN_MS;
      }
      const elements = Math.min(sliceElements, count - at);
      if (merges !== undefined) {
        this.#mergeSlice(parts, output, at, elements, merges);
        continue;
      }
      const done = inPlace?.reduceSlice(parts, output, at, elements, options) ?? 0;
      if (done < elements) {
        this.#reduceSlice(parts, output, at + done, elements - done, options);
      }
    }
  }

  #reduceSlice(
    parts: readonly Uint8Array[],
    output: Uint8Array,
    at: number,
    elements: number,
    { dtype, op, inputDtype = dtype, divisor = parts.length }: ReduceOptions,
  ): void {
    const code = DTYPE_CODES[inputDtype];
    const inputSize = byteSize(inputDtype);
    const outputSize = byteSize(dtype);
    const count = Math.ceil(elements / 16) * 16;
    const acc = this.#acc;
    const source = this.#part;
    const isAccumulator = inputSize !== 2; // f32 and integers are combined as they are
    for (let rank = 0; rank < parts.length; rank++) {
      const part = parts[rank]!.subarray(at * inputSize, (at + elements) * inputSize);
      if (rank > 0) {
        this.#memory.set(part, source);
        this.#exports.accumulate(code, OP_CODES[op], acc, source, count);
      } else if (isAccumulator) {
        this.#memory.set(part, acc);
      } else {
        this.#memory.set(part, source);
        this.#exports.start(code, acc, source, count);
      }
    }
    const divideBy = op === 'mean' ? divisor : 1;
    let result = acc;
    if (outputSize === 2 || divideBy > 1) {
      result = source;
      this.#exports.finish(DTYPE_CODES[dtype], acc, source, count, divideBy);
    }
    output.set(this.#memory.subarray(result, result + elements * outputSize), at * outputSize);
  }

  /** As reduceSlice, in the order of `merges`: sums that wait lie in slots of the accumulator. */
  #mergeSlice(
    parts: readonly Uint8Array[],
    output: Uint8Array,
    at: number,
    elements: number,
    merges: readonly number[],
  ): void {
    const slotBytes = slotElements(merges) * 4;
    const count = 16 * Math.ceil(elements / 16);
    const add = (sum: number, source: number) =>
      this.#exports.accumulate(DTYPE_CODES.f32, OP_CODES.sum, sum, source, count);
    let end = this.#acc; // of the slots that are in use
    for (const [i, whole] of parts.entries()) {
      const part = whole.subarray(at * 4, (at + elements) * 4);
      const numMerges = merges[i]!;
      if (numMerges === 0) {
        this.#memory.set(part, end);
        end += slotBytes;
        continue;
      }
      this.#memory.set(part, this.#part);
      add(end - slotBytes, this.#part);
      for (let left = numMerges; left > 1; left--) {
        end -= slotBytes;
        add(end - slotBytes, end);
      }
    }
    output.set(this.#memory.subarray(this.#acc, this.#acc + elements * 4), at * 4);
  }
}

/** The elements of a slot, where the accumulator is divided among the sums that wait at once. */
function slotElements(merges: readonly number[]): number {
  let waiting = 0;
  let most = 1;
  for (const count of merges) {
    waiting += count === 0 ? 1 : 1 - count;
    most = Math.max(most, waiting);
  }
  return Math.floor(SLICE_ELEMENTS / most / 16) * 16;
}
