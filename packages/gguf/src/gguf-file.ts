// The GGUF format, version 3: a header with typed metadata and the place of each tensor, then the
// tensors' bytes, aligned. Dimensions are written innermost first, in the reverse order of shapes.

import { ByteWriter } from './byte-writer.js';
import { GgufUsageError } from './errors.js';
import { type GgufTensorType, storedBytes, TYPE_INFO } from './tensor-types.js';

/** A value of a header, with the format's name of its type. */
export type MetadataValue =
  | { readonly type: 'u32' | 'f32'; readonly value: number }
  | { readonly type: 'bool'; readonly value: boolean }
  | { readonly type: 'string'; readonly value: string }
  | { readonly type: 'i32[]' | 'f32[]'; readonly value: readonly number[] }
  | { readonly type: 'string[]'; readonly value: readonly string[] };

/** A tensor to be written. */
export interface GgufTensor {
  readonly name: string;
  readonly type: GgufTensorType;
  /** The dimensions, outermost first; at most four. */
  readonly shape: readonly number[];
  /** Its bytes in order, in the encoding of its type. */
  pieces(): AsyncIterable<Uint8Array> | Iterable<Uint8Array>;
}

/** A file to be written. */
export interface GgufFile {
  readonly byteLength: number;
  /** All bytes in order; a tensor is read when its turn comes. */
  pieces(): AsyncGenerator<Uint8Array, void, undefined>;
}

const MAGIC = 'GGUF';
const VERSION = 3;
/** The default of the format, which llama.cpp's own files have. */
const ALIGNMENT = 32;
const MAX_DIMENSIONS = 4;
/** llama.cpp keeps names in 64 bytes, with a zero after them. */
const MAX_NAME_BYTES = 63;

const VALUE_TYPES = { u32: 4, i32: 5, f32: 6, bool: 7, string: 8, array: 9 } as const;

/**
 * Lays a file out. Nothing is read yet. Tensors follow one another in the order given, and only as
 * much of a tensor is in memory as its `pieces` gives at a time.
 * @throws {GgufUsageError} for a name, a shape or a number that the format can't hold
 * @example
 * ```ts
 * import { ggufFile } from '@shardweave/gguf';
 *
 * const weight = {
 *   name: 'token_embd.weight',
 *   type: 'f32',
 *   shape: [3, 2], // rows first
 *   pieces: () => [new Uint8Array(Float32Array.of(1, 2, 3, 4, 5, 6).buffer)],
 * } as const;
 * const file = ggufFile(new Map(), [weight]);
 * let byteLength = 0;
 * for await (const piece of file.pieces()) byteLength += piece.length;
 * console.log(byteLength === file.byteLength); // logs true
 * ```
 */
export function ggufFile(
  metadata: ReadonlyMap<string, MetadataValue>,
  tensors: readonly GgufTensor[],
): GgufFile {
  const header = new ByteWriter();
  header.bytes(new TextEncoder().encode(MAGIC));
  header.u32(VERSION);
  header.u64(tensors.length);
  header.u64(metadata.size);
  for (const [key, value] of metadata) {
    header.string(key);
    writeValue(header, key, value);
  }
  const names = new Set<string>();
  let offset = 0;
  for (const tensor of tensors) {
    checkTensor(tensor, names);
    header.string(tensor.name);
    header.u32(tensor.shape.length);
    for (const size of tensor.shape.toReversed()) {
      header.u64(size);
    }
    header.u32(TYPE_INFO[tensor.type].id);
    header.u64(offset);
    offset += aligned(byteLengthOf(tensor));
  }
  const start = header.take();
  return {
    byteLength: aligned(start.byteLength) + offset,
    pieces: () => filePieces(start, tensors),
  };
}

async function* filePieces(
  start: Uint8Array,
  tensors: readonly GgufTensor[],
): AsyncGenerator<Uint8Array, void, undefined> {
  yield start;
  yield paddingAfter(start.byteLength);
  for (const tensor of tensors) {
    const expected = byteLengthOf(tensor);
    let written = 0;
    for await (const piece of tensor.pieces()) {
      written += piece.byteLength;
      yield piece;
    }
    if (written !== expected) {
      throw new GgufUsageError(
        `ggufFile: expected ${expected} bytes of '${tensor.name}' (${tensor.type} [${tensor.shape.join(', ')}]), got ${written}.`,
      );
    }
    yield paddingAfter(expected);
  }
}

function checkTensor({ name, type, shape }: GgufTensor, names: Set<string>): void {
  if (names.has(name)) {
    throw new GgufUsageError(`ggufFile: expected '${name}' once, got it twice.`);
  }
  names.add(name);
  if (new TextEncoder().encode(name).byteLength > MAX_NAME_BYTES) {
    throw new GgufUsageError(
      `ggufFile: expected names of at most ${MAX_NAME_BYTES} bytes, got '${name}'.`,
    );
  }
  const isShape = shape.every((size) => Number.isSafeInteger(size) && size > 0);
  if (!isShape || shape.length < 1 || shape.length > MAX_DIMENSIONS) {
    throw new GgufUsageError(
      `ggufFile: expected 1 to ${MAX_DIMENSIONS} dimensions of at least 1 for '${name}', got [${shape.join(', ')}].`,
    );
  }
  const { blockElements } = TYPE_INFO[type];
  if (shape.at(-1)! % blockElements !== 0) {
    throw new GgufUsageError(
      `ggufFile: expected rows in whole blocks of ${blockElements} for '${name}' (${type}), got rows of ${shape.at(-1)}.`,
    );
  }
}

function writeValue(header: ByteWriter, key: string, metadata: MetadataValue): void {
  const { type, value } = metadata;
  switch (type) {
    case 'u32':
      requireWhole(key, value, { least: 0, most: 2 ** 32 - 1 });
      header.u32(VALUE_TYPES.u32);
      header.u32(value);
      break;
    case 'f32':
      header.u32(VALUE_TYPES.f32);
      header.f32(value);
      break;
    case 'bool':
      header.u32(VALUE_TYPES.bool);
      header.u8(value ? 1 : 0);
      break;
    case 'string':
      header.u32(VALUE_TYPES.string);
      header.string(value);
      break;
    case 'string[]':
      writeArray(header, { type: VALUE_TYPES.string, length: value.length });
      for (const text of value) {
        header.string(text);
      }
      break;
    case 'i32[]':
      writeArray(header, { type: VALUE_TYPES.i32, length: value.length });
      for (const number of value) {
        requireWhole(key, number, { least: -(2 ** 31), most: 2 ** 31 - 1 });
        header.i32(number);
      }
      break;
    default:
      writeArray(header, { type: VALUE_TYPES.f32, length: value.length });
      for (const number of value) {
        header.f32(number);
      }
  }
}

function writeArray(
  header: ByteWriter,
  { type, length }: { readonly type: number; readonly length: number },
): void {
  header.u32(VALUE_TYPES.array);
  header.u32(type);
  header.u64(length);
}

function requireWhole(
  key: string,
  value: number,
  { least, most }: { readonly least: number; readonly most: number },
): void {
  if (!Number.isInteger(value) || value < least || value > most) {
    throw new GgufUsageError(
      `ggufFile: expected a whole number from ${least} to ${most} for '${key}', got ${value}.`,
    );
  }
}

function byteLengthOf({ type, shape }: GgufTensor): number {
  return storedBytes(
    type,
    shape.reduce((product, size) => product * size, 1),
  );
}

function aligned(bytes: number): number {
  return Math.ceil(bytes / ALIGNMENT) * ALIGNMENT;
}

function paddingAfter(bytes: number): Uint8Array {
  return new Uint8Array(aligned(bytes) - bytes);
}
