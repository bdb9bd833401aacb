// f32 values in fewer bytes for their way over a link: 16-bit floats, or int8 in blocks of 256 with
// an f32 scale each (ZeRO++ arXiv 2306.10209 calls it qwZ and qgZ), with the error fed back into the
// next call where the caller keeps a residual. In WebAssembly SIMD, slice by slice as the Reducer.

import { wasmBase64 } from './generated/wasm.js';
import { yieldToEventLoop } from './yield-to-event-loop.js';

/** How f32 values travel. */
export type WireFormat = 'f16' | 'bf16' | 'int8';

export const WIRE_FORMATS: readonly WireFormat[] = ['f16', 'bf16', 'int8'];

/** Elements of an int8 block; each costs 4 bytes more, its scale. */
export const INT8_BLOCK_ELEMENTS = 256;

/** A whole number of blocks whose values, residual and decoded values stay in a level 2 cache. */
const SLICE_ELEMENTS = 64 * INT8_BLOCK_ELEMENTS;

/** Milliseconds before the event loop gets a turn, as in the Reducer. */
const TURN_MS = 8;

const F32 = 0;
const ADD = 0;
const DTYPE_CODES = { f16: 1, bf16: 2 } as const;

export interface CodingOptions {
  readonly format: WireFormat;
  /** Aborted: nothing more is written, and the call resolves. */
  readonly signal?: AbortSignal | undefined;
}

export interface EncodeOptions extends CodingOptions {
  /** f32 bytes, as long as the values. */
  readonly residual?: Uint8Array | undefined;
}

interface CodecExports {
  readonly memory: WebAssembly.Memory;
  reserve(byteLength: number): number;
  start(dtype: number, acc: number, source: number, count: number): void;
  accumulate(dtype: number, op: number, acc: number, source: number, count: number): void;
  finish(dtype: number, acc: number, target: number, count: number, divisor: number): void;
  quantize(values: number, coded: number, count: number): void;
  dequantize(coded: number, values: number, count: number): void;
  subtract(target: number, a: number, b: number, count: number): void;
}

/** Bytes of `count` f32 values in `format`. */
export function encodedByteLength(format: WireFormat, count: number): number {
  return format === 'int8' ? count + 4 * Math.ceil(count / INT8_BLOCK_ELEMENTS) : 2 * count;
}

/**
 * Encodes and decodes f32 bytes. The error of an element x: f16 half a unit in its last place, 2^-11
 * |x| (infinity above 65,504); bf16 2^-8 |x|; int8 m / 254, m the largest magnitude of its
 * block of 256. An int8 block with an infinity or NaN decodes to NaN altogether, one below 1e-35 to 0.
 */
export class WireCodec {
  readonly #exports: CodecExports;
  readonly #memory: Uint8Array;
  readonly #values: number;
  readonly #residual: number;
  readonly #coded: number;

  private constructor(exports: CodecExports) {
    this.#exports = exports;
    this.#values = exports.reserve(SLICE_ELEMENTS * 4);
    this.#residual = exports.reserve(SLICE_ELEMENTS * 4);
    this.#coded = exports.reserve(SLICE_ELEMENTS * 4);
    this.#memory = new Uint8Array(exports.memory.buffer);
  }

  /** Compiles the embedded module, about 5 ms. */
  static async create(): Promise<WireCodec> {
    const bytes = Uint8Array.from(atob(wasmBase64), (char) => char.charCodeAt(0));
    const { instance } = await WebAssembly.instantiate(bytes, {
      env: {
        abort: () => {
          throw new Error('codec: wasm aborted. This is a bug of @shardweave/dtypes.');
        },
      },
    });
    return new WireCodec(instance.exports as unknown as CodecExports);
  }

  /**
   * Writes the f32 `values` into `coded`, of encodedByteLength bytes. With a `residual` (f32, as long
   * as `values`), it is added before, and holds afterwards what got lost: error feedback. The
   * event loop gets a turn every 8 ms; the buffers are the codec's until it resolves. Throws
   * RangeError where lengths differ.
   */
  async encode(
    values: Uint8Array,
    coded: Uint8Array,
    { format, residual, signal }: EncodeOptions,
  ): Promise<void> {
    checkLengths(values, coded, format);
    if (residual !== undefined && residual.byteLength !== values.byteLength) {
      throw new RangeError(
        `encode: expected a residual of ${values.byteLength} bytes, got ${residual.byteLength}.`,
      );
    }
    await eachSlice(values.byteLength / 4, { format, signal }, (at, count, codedAt, codedEnd) => {
      const memory = this.#memory;
      const exports = this.#exports;
      const padded = this.#load(values.subarray(4 * at, 4 * (at + count)), this.#values);
      const slice = residual?.subarray(4 * at, 4 * (at + count));
      if (slice !== undefined) {
        this.#load(slice, this.#residual);
        exports.accumulate(F32, ADD, this.#values, this.#residual, padded);
      }
      if (format === 'int8') {
        exports.quantize(this.#values, this.#coded, count);
      } else {
        exports.finish(DTYPE_CODES[format], this.#values, this.#coded, padded, 1);
      }
      coded.set(memory.subarray(this.#coded, this.#coded + codedEnd - codedAt), codedAt);
      if (slice !== undefined) {
        this.#decodeSlice(format, this.#residual, count);
        exports.subtract(this.#residual, this.#values, this.#residual, padded);
        slice.set(memory.subarray(this.#residual, this.#residual + slice.length));
      }
    });
  }

  /** Writes what `coded` holds into `values`, f32 bytes. Otherwise as `encode`. */
  async decode(coded: Uint8Array, values: Uint8Array, options: CodingOptions): Promise<void> {
    const { format } = options;
    checkLengths(values, coded, format);
    await eachSlice(values.byteLength / 4, options, (at, count, codedAt, codedEnd) => {
      this.#memory.set(coded.subarray(codedAt, codedEnd), this.#coded);
      this.#decodeSlice(format, this.#values, count);
      values.set(this.#memory.subarray(this.#values, this.#values + 4 * count), 4 * at);
    });
  }

  /** Copies f32 bytes to `place`, with zeros up to 16 elements; returns the elements with those. */
  #load(bytes: Uint8Array, place: number): number {
    const padded = Math.ceil(bytes.length / 64) * 64;
    this.#memory.set(bytes, place);
    this.#memory.fill(0, place + bytes.length, place + padded);
    return padded / 4;
  }

  #decodeSlice(format: WireFormat, target: number, count: number): void {
    if (format === 'int8') {
      this.#exports.dequantize(this.#coded, target, count);
    } else {
      this.#exports.start(DTYPE_CODES[format], target, this.#coded, Math.ceil(count / 16) * 16);
    }
  }
}

type VisitSlice = (at: number, count: number, codedAt: number, codedEnd: number) => void;

async function eachSlice(
  total: number,
  { format, signal }: CodingOptions,
  visit: VisitSlice,
): Promise<void> {
  let turnEnd = performance.now() + TURN_MS;
  for (let at = 0; at < total; at += SLICE_ELEMENTS) {
    if (at > 0 && performance.now() > turnEnd) {
      await yieldToEventLoop();
      turnEnd = performance.now() + TURN_MS;
    }
    if (signal?.aborted) {
      return;
    }
    const count = Math.min(SLICE_ELEMENTS, total - at);
    visit(at, count, encodedByteLength(format, at), encodedByteLength(format, at + count));
  }
}

function checkLengths(values: Uint8Array, coded: Uint8Array, format: WireFormat): void {
  if (values.byteLength % 4 !== 0) {
    throw new RangeError(
      `wire codec: expected whole f32 elements, got ${values.byteLength} bytes.`,
    );
  }
  const expected = encodedByteLength(format, values.byteLength / 4);
  if (coded.byteLength !== expected) {
    throw new RangeError(
      `wire codec: expected ${expected} bytes of ${format} for ${values.byteLength / 4} values, ` +
        `got ${coded.byteLength}.`,
    );
  }
}
