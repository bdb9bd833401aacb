// The safetensors file format: an 8-byte length, a JSON header, then the tensors' bytes. Reads and
// writes whole files as bytes; tensors read are views of the file, nothing is copied.

import { elementCountOf } from '@shardweave/tensor-core';
import { FormatError } from '../errors.js';
import type { FileDType, HostTensor } from '../host-tensor.js';

/** A file's tensors by name, in the order of their bytes, and its free-form texts. */
export interface Safetensors {
  readonly tensors: ReadonlyMap<string, HostTensor>;
  readonly metadata: Readonly<Record<string, string>>;
}

/** The format's own limit on its header, against files that are something else. */
const MAX_HEADER_BYTES = 100_000_000;
const TRUNCATED = ' Is the file truncated?';
/** The data start at a multiple of this, so that they can be viewed in place. */
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

/**
 * Reads a file.
 * @throws {FormatError} where it is truncated or malformed: every offset, shape and dtype is checked
 */
export function readSafetensors(file: Uint8Array): Safetensors {
  if (file.byteLength < 8) throw malformed(`at least 8 bytes, got ${file.byteLength}`);
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  const headerLength = Number(view.getBigUint64(0, true));
  if (headerLength > MAX_HEADER_BYTES || headerLength > file.byteLength - 8) {
    throw malformed(
      `a header within the file's ${file.byteLength} bytes, got a header of ${headerLength}`,
      TRUNCATED,
    );
  }
  const header = parseHeader(file.subarray(8, 8 + headerLength));
  const { __metadata__: metadata = {}, ...entries } = header;
  if (!isRecord(metadata) || Object.values(metadata).some((text) => typeof text !== 'string')) {
    throw malformed('texts in __metadata__');
  }
  const data = file.subarray(8 + headerLength);
  const tensors = Object.entries(entries).map(([name, entry]) => readEntry(name, entry));
  tensors.sort((a, b) => a.start - b.start || a.end - b.end);
  let end = 0;
  for (const tensor of tensors) {
    if (tensor.start !== end) {
      throw malformed(`'${tensor.name}' to start at byte ${end} of the data, got ${tensor.start}`);
    }
    end = tensor.end;
  }
  if (end !== data.byteLength) {
    throw malformed(`${end} bytes of data, got ${data.byteLength}`, TRUNCATED);
  }
  return {
    tensors: new Map(
      tensors.map(({ name, dtype, shape, start, end }) => [
        name,
        { dtype, shape, data: data.subarray(start, end) },
      ]),
    ),
    metadata: metadata as Record<string, string>,
  };
}

/**
 * Writes a file: tensors in the map's order, the header padded so that the data are aligned.
 * @param options.metadata default {}
 * @throws {FormatError} where a tensor's bytes do not match its shape
 */
export function writeSafetensors(
  tensors: ReadonlyMap<string, HostTensor>,
  options: { readonly metadata?: Readonly<Record<string, string>> } = {},
): Uint8Array<ArrayBuffer> {
  const header: Record<string, unknown> = {};
  if (options.metadata !== undefined) header.__metadata__ = options.metadata;
  // Wider elements first, so that each tensor starts at a multiple of its own element size.
  const sorted = [...tensors].sort(([, a], [, b]) => bytesOf(b.dtype) - bytesOf(a.dtype));
  let end = 0;
  for (const [name, { dtype, shape, data }] of sorted) {
    const byteLength = elementCountOf(shape) * bytesOf(dtype);
    if (data.byteLength !== byteLength) {
      throw new FormatError(
        `writeSafetensors: expected ${byteLength} bytes for '${name}' (${dtype} [${shape.join(', ')}]), got ${data.byteLength}.`,
      );
    }
    header[name] = {
      dtype: FILE_NAMES.get(dtype),
      shape,
      data_offsets: [end, end + byteLength],
    };
    end += byteLength;
  }
  const text = JSON.stringify(header);
  const headerBytes = new TextEncoder().encode(text);
  const padded = Math.ceil(headerBytes.byteLength / DATA_ALIGNMENT) * DATA_ALIGNMENT;
  const file = new Uint8Array(8 + padded + end);
  new DataView(file.buffer).setBigUint64(0, BigInt(padded), true);
  file.set(headerBytes, 8);
  file.fill(0x20, 8 + headerBytes.byteLength, 8 + padded);
  let at = 8 + padded;
  for (const [, { data }] of sorted) {
    file.set(data, at);
    at += data.byteLength;
  }
  return file;
}

function parseHeader(bytes: Uint8Array): Record<string, unknown> {
  let header: unknown;
  try {
    header = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes));
  } catch (error) {
    throw new FormatError(
      'readSafetensors: expected a header in JSON. Is it another kind of file?',
      {
        cause: error,
      },
    );
  }
  if (!isRecord(header)) throw malformed('an object as its header');
  return header;
}

function readEntry(name: string, entry: unknown) {
  if (!isRecord(entry)) throw malformed(`an object for '${name}'`);
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
  const [dtype, bytes] = known;
  const [start, end] = offsets as [number, number];
  if (end - start !== elementCountOf(shape) * bytes) {
    throw malformed(
      `${elementCountOf(shape) * bytes} bytes for '${name}' (${dtypeName} [${shape.join(', ')}]), got ${end - start}`,
    );
  }
  return { name, dtype, shape, start, end };
}

function bytesOf(dtype: FileDType): number {
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
