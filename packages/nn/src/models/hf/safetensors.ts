// The safetensors file format: the header's length in 8 bytes, the header in JSON, and then the
// tensors' bytes. A file that fits into one array can be read and written whole. A larger one is
// read by ranges and written in pieces, so that one tensor is in memory at a time.

import { elementCountOf } from '@shardweave/tensor-core';
import { checkOptions, OBJECT, type OptionRules, optional } from '../../check-options.js';
import { FormatError } from '../../errors.js';
import type { ElementRange, HostTensor, LazyTensor } from '../../host-tensor.js';
import {
  byteLengthOf,
  elementBytesOf,
  headerLengthOf,
  LENGTH_BYTES,
  layOut,
  parseHeader,
} from './safetensors-header.js';

/** A file's tensors by name, in the order in which their bytes lie, and its free-form texts. */
export interface Safetensors<T = HostTensor> {
  readonly tensors: ReadonlyMap<string, T>;
  readonly metadata: Readonly<Record<string, string>>;
}

/** Bytes that can be read anywhere: a file, a Blob, a server that answers ranges. */
export interface ByteSource {
  readonly byteLength: number;
  /** Fills all of `into` from byte `offset` on, or rejects. Offsets go beyond 2^32. */
  read(into: Uint8Array, options: { readonly offset: number }): Promise<void>;
}

/** Options of writing a safetensors file. */
export interface WriteSafetensorsOptions {
  /** Default none. */
  readonly metadata?: Readonly<Record<string, string>>;
}

const WRITE_RULES: OptionRules<WriteSafetensorsOptions> = { metadata: optional(OBJECT) };

/** Below what one system call writes (2^31 bytes), and large enough to cost nothing. */
const PIECE_BYTES = 64 * 2 ** 20;

/**
 * Reads a file in memory; tensors are views of it, nothing is copied.
 * @throws {FormatError} where it is truncated or malformed: every offset, shape and dtype is
 * checked
 */
export function readSafetensors(file: Uint8Array): Safetensors {
  const headerLength = headerLengthOf(file.subarray(0, LENGTH_BYTES), file.byteLength);
  const data = file.subarray(LENGTH_BYTES + headerLength);
  const header = file.subarray(LENGTH_BYTES, LENGTH_BYTES + headerLength);
  const { places, metadata } = parseHeader(header, data.byteLength);
  const tensors = places.map(({ name, dtype, shape, start, end }) => {
    return [name, { dtype, shape, data: data.subarray(start, end) }] as const;
  });
  return { tensors: new Map(tensors), metadata };
}

/**
 * Reads a file's header alone; each tensor reads its own range, or a part of it, when it is asked
 * for.
 * @throws {FormatError} as readSafetensors, also where the source is shorter than its header says
 */
export async function openSafetensors(source: ByteSource): Promise<Safetensors<LazyTensor>> {
  const first = await readRange(source, 0, Math.min(LENGTH_BYTES, source.byteLength));
  const headerLength = headerLengthOf(first, source.byteLength);
  const header = await readRange(source, LENGTH_BYTES, headerLength);
  const from = LENGTH_BYTES + headerLength;
  const { places, metadata } = parseHeader(header, source.byteLength - from);
  const tensors = places.map(({ name, dtype, shape, start, end }) => {
    const read = () => readRange(source, from + start, end - start);
    const bytes = elementBytesOf(dtype);
    const readPart = ({ first, count }: ElementRange, into?: Uint8Array) =>
      readRange(source, from + start + first * bytes, count * bytes, into);
    return [name, { dtype, shape, read, readPart }] as const;
  });
  return { tensors: new Map(tensors), metadata };
}

/**
 * Writes a file as one array. The tensors are sorted by the size of their elements, the largest
 * first, so that each begins at a multiple of its element size; those of one size keep the map's
 * order. The map a: f16, b: f32, c: f16 is written as b, a, c.
 * @throws {FormatError} where a tensor's bytes do not match its shape, and where the file is larger
 * than an array can be, which safetensorsPieces writes
 */
export function writeSafetensors(
  tensors: ReadonlyMap<string, HostTensor>,
  options: WriteSafetensorsOptions = {},
): Uint8Array<ArrayBuffer> {
  checkOptions('writeSafetensors', options, WRITE_RULES);
  const { start, tensors: sorted, byteLength } = layOut(tensors, options.metadata);
  for (const [name, tensor] of sorted) {
    checkBytes(name, tensor, tensor.data);
  }
  const file = arrayOf(byteLength);
  file.set(start);
  let at = start.byteLength;
  for (const [, { data }] of sorted) {
    file.set(data, at);
    at += data.byteLength;
  }
  return file;
}

/**
 * The length of the file that writeSafetensors and safetensorsPieces make of tensors of these
 * dtypes and shapes.
 */
export function safetensorsByteLength(
  tensors: ReadonlyMap<string, Pick<HostTensor, 'dtype' | 'shape'>>,
  options: WriteSafetensorsOptions = {},
): number {
  checkOptions('safetensorsByteLength', options, WRITE_RULES);
  return layOut(tensors, options.metadata).byteLength;
}

/**
 * The bytes of the file that writeSafetensors would make, one piece after the other. Pieces of data
 * have at most 64 MiB. A lazy tensor is read when its turn comes, piece by piece where it has
 * `readPart`.
 * @throws {FormatError} where a tensor's bytes do not match its shape; the pieces before it are no
 * valid file
 */
export async function* safetensorsPieces(
  tensors: ReadonlyMap<string, HostTensor | LazyTensor>,
  options: WriteSafetensorsOptions = {},
): AsyncGenerator<Uint8Array, void, undefined> {
  checkOptions('safetensorsPieces', options, WRITE_RULES);
  const { start, tensors: sorted } = layOut(tensors, options.metadata);
  yield start;
  for (const [name, tensor] of sorted) {
    if ('readPart' in tensor && tensor.readPart !== undefined) {
      yield* partsOf(name, tensor, tensor.readPart);
      continue;
    }
    const data = 'data' in tensor ? tensor.data : await tensor.read();
    checkBytes(name, tensor, data);
    for (let at = 0; at < data.byteLength; at += PIECE_BYTES) {
      yield data.subarray(at, at + PIECE_BYTES);
    }
  }
}

async function* partsOf(
  name: string,
  tensor: LazyTensor,
  readPart: NonNullable<LazyTensor['readPart']>,
): AsyncGenerator<Uint8Array, void, undefined> {
  const most = PIECE_BYTES / elementBytesOf(tensor.dtype);
  const size = elementCountOf(tensor.shape);
  for (let first = 0; first < size; first += most) {
    const count = Math.min(most, size - first);
    const data = await readPart({ first, count });
    checkBytes(name, { ...tensor, shape: [count] }, data);
    yield data;
  }
}

async function readRange(
  source: ByteSource,
  offset: number,
  byteLength: number,
  into: Uint8Array = new Uint8Array(byteLength),
): Promise<Uint8Array> {
  const bytes = into.subarray(0, byteLength);
  if (byteLength > 0) {
    await source.read(bytes, { offset });
  }
  return bytes;
}

function checkBytes(name: string, tensor: HostTensor | LazyTensor, data: Uint8Array): void {
  const expected = byteLengthOf(tensor);
  if (data.byteLength === expected) {
    return;
  }
  const { dtype, shape } = tensor;
  throw new FormatError(
    `writeSafetensors: expected ${expected} bytes for '${name}' (${dtype} [${shape.join(', ')}]), got ${data.byteLength}.`,
  );
}

function arrayOf(byteLength: number): Uint8Array<ArrayBuffer> {
  try {
    return new Uint8Array(byteLength);
  } catch (error) {
    throw new FormatError(
      `writeSafetensors: expected a file that fits one array, got ${byteLength} bytes. Write it with safetensorsPieces, a piece at a time.`,
      { cause: error },
    );
  }
}
