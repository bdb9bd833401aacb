// The header of a safetensors file: its length in 8 bytes, then JSON with the dtype, shape and
// place of each tensor. Offsets count from the end of the header and can exceed 2^32.

import { elementCountOf, type Shape } from '@shardweave/tensor-core';
import { FormatError } from '../../errors.js';
import type { FileDType } from '../../host-tensor.js';

/** The size of the field at the file's start that holds the header's length. */
export const LENGTH_BYTES = 8;
/**
 * The limit that the format sets on its header. A file that is something else exceeds it almost
 * always.
 */
const MAX_HEADER_BYTES = 100_000_000;
const TRUNCATED = ' Is the file truncated?';
/** The data begin at a multiple of this, so that they can be viewed in place. */
const DATA_ALIGNMENT = 8;

const DTYPES = new Map<string, readonly [dtype: FileDType, bytes: number]>([
  ['F64', ['f64', 8]],
  ['F32', ['f32', 4]],
  ['F16', ['f16', 2]],
  ['BF16', ['bf16', 2]],
  ['F8_E4M3', ['f8_e4m3', 1]],
  ['F8_E5M2', ['f8_e5m2', 1]],
  ['I64', ['i64', 8]],
  ['I32', ['i32', 4]],
  ['I16', ['i16', 2]],
  ['I8', ['i8', 1]],
  ['U64', ['u64', 8]],
  ['U32', ['u32', 4]],
  ['U16', ['u16', 2]],
  ['U8', ['u8', 1]],
  ['BOOL', ['bool', 1]],
]);
const FILE_NAMES = new Map([...DTYPES].map(([name, [dtype]]) => [dtype, name]));

/** The dtype and shape of a tensor. */
interface Described {
  readonly dtype: FileDType;
  readonly shape: Shape;
}

/** Where the file has a tensor: at bytes [start, end) of its data. */
export interface TensorPlace extends Described {
  readonly name: string;
  readonly start: number;
  readonly end: number;
}

export interface Header {
  /** The tensors' places, in the order of their bytes. */
  readonly places: readonly TensorPlace[];
  readonly metadata: Readonly<Record<string, string>>;
}

/**
 * Reads the header's length from the file's first 8 bytes.
 * @throws {FormatError} where these are fewer than 8, and where the header would exceed the file or
 * the format's limit
 */
export function headerLengthOf(first: Uint8Array, fileBytes: number): number {
  if (first.byteLength < LENGTH_BYTES) {
    throw malformed(`at least ${LENGTH_BYTES} bytes, got ${first.byteLength}`);
  }
  const view = new DataView(first.buffer, first.byteOffset, LENGTH_BYTES);
  const length = Number(view.getBigUint64(0, true));
  if (length > MAX_HEADER_BYTES || length > fileBytes - LENGTH_BYTES) {
    throw malformed(
      `a header within the file's ${fileBytes} bytes, got a header of ${length}`,
      TRUNCATED,
    );
  }
  return length;
}

/**
 * Reads a header, and checks every dtype, shape and offset against the number of bytes of data that
 * follow it.
 * @throws {FormatError} for a header that is malformed or does not fit the data
 */
export function parseHeader(bytes: Uint8Array, dataBytes: number): Header {
  const { __metadata__: metadata = {}, ...entries } = parseJson(bytes);
  if (!isRecord(metadata) || Object.values(metadata).some((text) => typeof text !== 'string')) {
    throw malformed('texts in __metadata__');
  }
  const places = Object.entries(entries).map(([name, entry]) => readEntry(name, entry));
  places.sort((a, b) => a.start - b.start || a.end - b.end);
  let end = 0;
  for (const place of places) {
    if (place.start !== end) {
      throw malformed(`'${place.name}' to start at byte ${end} of the data, got ${place.start}`);
    }
    end = place.end;
  }
  if (end !== dataBytes) {
    throw malformed(`${end} bytes of data, got ${dataBytes}`, TRUNCATED);
  }
  return { places, metadata: metadata as Record<string, string> };
}

/** The layout of a file to write. */
export interface FileLayout<T extends Described> {
  /** The beginning of the file up to its data, which are aligned. */
  readonly start: Uint8Array<ArrayBuffer>;
  readonly tensors: readonly (readonly [name: string, tensor: T])[];
  /** The length of the whole file. */
  readonly byteLength: number;
}

/**
 * Lays out tensors for a file. Those with wider elements come first, so that each begins at a
 * multiple of its element size.
 */
export function layOut<T extends Described>(
  tensors: ReadonlyMap<string, T>,
  metadata: Readonly<Record<string, string>> | undefined,
): FileLayout<T> {
  const header: Record<string, unknown> = {};
  if (metadata !== undefined) {
    header.__metadata__ = metadata;
  }
  const sorted = [...tensors].sort(
    ([, a], [, b]) => elementBytesOf(b.dtype) - elementBytesOf(a.dtype),
  );
  let end = 0;
  for (const [name, tensor] of sorted) {
    const { dtype, shape } = tensor;
    const start = end;
    end += byteLengthOf(tensor);
    header[name] = { dtype: FILE_NAMES.get(dtype), shape, data_offsets: [start, end] };
  }
  const text = new TextEncoder().encode(JSON.stringify(header));
  const padded = Math.ceil(text.byteLength / DATA_ALIGNMENT) * DATA_ALIGNMENT;
  const start = new Uint8Array(LENGTH_BYTES + padded).fill(0x20);
  new DataView(start.buffer).setBigUint64(0, BigInt(padded), true);
  start.set(text, LENGTH_BYTES);
  return { start, tensors: sorted, byteLength: start.byteLength + end };
}

/** The bytes of all elements of a tensor. */
export function byteLengthOf({ dtype, shape }: Described): number {
  return elementCountOf(shape) * elementBytesOf(dtype);
}

function parseJson(bytes: Uint8Array): Record<string, unknown> {
  let header: unknown;
  try {
    header = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes));
  } catch (error) {
    throw new FormatError(
      'readSafetensors: expected a header in JSON. Is it another kind of file?',
      { cause: error },
    );
  }
  if (!isRecord(header)) {
    throw malformed('an object as its header');
  }
  return header;
}

function readEntry(name: string, entry: unknown): TensorPlace {
  if (!isRecord(entry)) {
    throw malformed(`an object for '${name}'`);
  }
  const { dtype: dtypeName, shape, data_offsets: offsets } = entry;
  const known = typeof dtypeName === 'string' ? DTYPES.get(dtypeName) : undefined;
  if (known === undefined) {
    throw malformed(`a known dtype for '${name}', got ${JSON.stringify(dtypeName)}`);
  }
  if (!isCounts(shape)) {
    throw malformed(`whole dimensions for '${name}', got ${JSON.stringify(shape)}`);
  }
  if (!isCounts(offsets) || offsets.length !== 2) {
    throw malformed(`two offsets for '${name}', got ${JSON.stringify(offsets)}`);
  }
  const [dtype] = known;
  const [start, end] = offsets as [number, number];
  const expected = byteLengthOf({ dtype, shape });
  if (end - start !== expected) {
    throw malformed(
      `${expected} bytes for '${name}' (${dtypeName} [${shape.join(', ')}]), got ${end - start}`,
    );
  }
  return { name, dtype, shape, start, end };
}

/** The bytes of one element. */
export function elementBytesOf(dtype: FileDType): number {
  return DTYPES.get(FILE_NAMES.get(dtype)!)![1];
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function isCounts(value: unknown): value is readonly number[] {
  return Array.isArray(value) && value.every((item) => Number.isSafeInteger(item) && item >= 0);
}

function malformed(expected: string, hint = ''): FormatError {
  return new FormatError(`readSafetensors: expected ${expected}.${hint}`);
}
