// Encodes f32 values in fewer bytes for their way over a link: as 16-bit floats, or as int8 in
// blocks of 256 with one f32 scale each (qwZ and qgZ of ZeRO++, arXiv 2306.10209). Where the caller
// keeps a residual, the error is fed back into the next call. It runs in WebAssembly SIMD, slice by
// slice as the RankSum does.

import { wasmBase64 } from './generated/wasm.js';
import { yieldToEventLoop } from './yield-to-event-loop.js';

/** The format in which f32 values travel. */
export type WireFormat = 'f16' | 'bf16' | 'int8';

/** The compressed formats that f32 values can travel in. */
export const WIRE_FORMATS: readonly WireFormat[] = ['f16', 'bf16', 'int8'];

/** The elements of an int8 block; each block takes 4 more bytes for its scale. */
export const INT8_BLOCK_ELEMENTS = 256;

/** A whole number of blocks whose values, residual and decoded values stay in a level 2 cache. */
const SLICE_ELEMENTS = 64 * INT8_BLOCK_ELEMENTS;

/** The milliseconds before the event loop gets a turn, as in the RankSum. */
const TURN_MS = 8;

const F32 = 0;
const ADD = 0;
const DTYPE_CODES = { f16: 1, bf16: 2 } as const;

/** How a codec's work is cut into slices. */
export interface SliceOptions {
  /** Where it is aborted, nothing more is written, and the call resolves. */
  readonly signal?: AbortSignal | undefined;
  /**
   * Called before each slice; a promise that it returns is awaited first. It is for callers that do
   * several things in one turn of the event loop. Default: a turn of the event loop after every 8
   * ms of a call.
   */
  readonly pause?: (() => Promise<void> | undefined) | undefined;
}

/**
 * The wire format that values are coded in, and how the work makes room for other work or stops.
 */
export interface CodingOptions extends SliceOptions {
  readonly format: WireFormat;
}

/** The options of `encode`: the format, and a residual for error feedback. */
export interface EncodeOptions extends CodingOptions {
  /**
   * f32 bytes, as many as the values have. They are added to the values first; afterwards they hold
   * what encoding has lost. Default: nothing is added or kept.
   */
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
  updateResidual(residual: number, values: number, count: number): void;
  scale(values: number, count: number, factor: number): void;
}

/**
 * The bytes that `count` f32 values take in `format`.
 * @throws {RangeError} for an unknown format
 */
export function encodedByteLength(format: WireFormat, count: number): number {
  if (!WIRE_FORMATS.includes(format)) {
    throw new RangeError(
      `wire codec: expected one of ${WIRE_FORMATS.join(', ')}, got '${format}'.`,
    );
  }
  return format === 'int8' ? count + 4 * Math.ceil(count / INT8_BLOCK_ELEMENTS) : 2 * count;
}

/**
 * Encodes and decodes f32 bytes. The error of an element x is at most 2^-11 |x| in f16, which is
 * half a unit in the last place (and infinite above 65,504); 2^-8 |x| in bf16; m / 254 in int8,
 * where m is the largest magnitude of its block of 256. An int8 block with an infinity or NaN
 * decodes to NaN throughout, and one whose magnitudes are all below 1e-35 decodes to 0.
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

  /** Compiles the embedded module, in about 5 ms. */
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
   * Writes the f32 `values` into `coded`, which has encodedByteLength bytes. A `residual` (f32, as
   * long as `values`) is added to the values first, and afterwards holds what got lost, as error
   * feedback needs it; for a value that arrives as infinity or NaN it holds 0. The event loop gets
   * a turn every 8 ms; the buffers belong to the codec until the promise resolves.
   * @throws {RangeError} where lengths differ
   */
  async encode(values: Uint8Array, coded: Uint8Array, options: EncodeOptions): Promise<void> {
    const { format, residual } = options;
    checkLengths(values, coded, format);
    if (residual !== undefined && residual.byteLength !== values.byteLength) {
      throw new RangeError(
        `encode: expected a residual of ${values.byteLength} bytes, got ${residual.byteLength}.`,
      );
    }
    await eachSlice(values.byteLength / 4, options, (at, count) => {
      const [codedAt, codedEnd] = codedRange(format, at, count);
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
        exports.updateResidual(this.#residual, this.#values, padded);
        slice.set(memory.subarray(this.#residual, this.#residual + slice.length));
      }
    });
  }

  /**
   * Writes the values in `coded` into `values`, as f32 bytes. Otherwise it works as `encode` does.
   */
  async decode(coded: Uint8Array, values: Uint8Array, options: CodingOptions): Promise<void> {
    const { format } = options;
    checkLengths(values, coded, format);
    await eachSlice(values.byteLength / 4, options, (at, count) => {
      const [codedAt, codedEnd] = codedRange(format, at, count);
      this.#memory.set(coded.subarray(codedAt, codedEnd), this.#coded);
      this.#decodeSlice(format, this.#values, count);
      values.set(this.#memory.subarray(this.#values, this.#values + 4 * count), 4 * at);
    });
  }

  /** Adds the f32 `source` to `target`, which has the same length, and leaves zeros in `source`. */
  async moveInto(
    target: Uint8Array,
    source: Uint8Array,
    options: SliceOptions = {},
  ): Promise<void> {
    checkFloats(target);
    if (source.byteLength !== target.byteLength) {
      throw new RangeError(
        `wire codec: expected ${target.byteLength} bytes to add, got ${source.byteLength}.`,
      );
    }
    await eachSlice(target.byteLength / 4, options, (at, count) => {
      const [to, from] = [target, source].map((view) => view.subarray(4 * at, 4 * (at + count)));
      const padded = this.#load(to!, this.#values);
      this.#load(from!, this.#residual);
      this.#exports.accumulate(F32, ADD, this.#values, this.#residual, padded);
      to!.set(this.#memory.subarray(this.#values, this.#values + 4 * count));
      from!.fill(0);
    });
  }

  /** Multiplies f32 `values` by `factor`, in place. */
  async scale(values: Uint8Array, factor: number, options: SliceOptions = {}): Promise<void> {
    checkFloats(values);
    await eachSlice(values.byteLength / 4, options, (at, count) => {
      const slice = values.subarray(4 * at, 4 * (at + count));
      this.#exports.scale(this.#values, this.#load(slice, this.#values), factor);
      slice.set(this.#memory.subarray(this.#values, this.#values + 4 * count));
    });
  }

  /**
   * Copies f32 bytes to `place`, padded with zeros to a multiple of 16 elements; returns the number
   * of elements with the padding.
   */
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

async function eachSlice(
  total: number,
  { signal, pause = eightMsATurn() }: SliceOptions,
  visit: (at: number, count: number) => void,
): Promise<void> {
  for (let at = 0; at < total; at += SLICE_ELEMENTS) {
    const turn = pause();
    if (turn !== undefined) {
      await turn;
    }
    if (signal?.aborted) {
      return;
    }
    visit(at, Math.min(SLICE_ELEMENTS, total - at));
  }
}

function eightMsATurn(): () => Promise<void> | undefined {
  let endMs = performance.now() + TURN_MS;
  return () =>
    performance.now() < endMs
      ? undefined
      : yieldToEventLoop().then(() => {
          endMs = performance.now() + TURN_MS;
        });
}

/** The beginning and the end of the coded bytes of a slice of whole blocks. */
function codedRange(format: WireFormat, at: number, count: number): [number, number] {
  return [encodedByteLength(format, at), encodedByteLength(format, at + count)];
}

function checkFloats(values: Uint8Array): void {
  if (values.byteLength % 4 !== 0) {
    throw new RangeError(
      `wire codec: expected whole f32 elements, got ${values.byteLength} bytes.`,
    );
  }
}

function checkLengths(values: Uint8Array, coded: Uint8Array, format: WireFormat): void {
  checkFloats(values);
  const expected = encodedByteLength(format, values.byteLength / 4);
  if (coded.byteLength !== expected) {
    throw new RangeError(
      `wire codec: expected ${expected} bytes of ${format} for ${values.byteLength / 4} values, ` +
        `got ${coded.byteLength}.`,
    );
  }
}
