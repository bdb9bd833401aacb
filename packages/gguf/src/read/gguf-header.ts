// The header of a file: its version, its metadata, and the name, type, shape and place of each
// tensor, all of them checked.

import { floorLog2, pow64 } from '@shardweave/dtypes/float64';
import { GgufModelError } from '../errors.js';
import {
  type GgufTensorType,
  isTensorType,
  storedBytes,
  TENSOR_TYPES,
  TYPE_INFO,
} from '../tensor-types.js';
import { HeaderReader, MAX_HEADER_BYTES, MoreBytesNeeded } from './header-reader.js';
import { type GgufValue, readValue } from './metadata-values.js';
import { typeName } from './type-names.js';

/** A tensor, and the bytes of the file that are its own. */
export interface TensorPlace {
  readonly name: string;
  readonly type: GgufTensorType;
  /** Outermost first; the file has them in the other order. */
  readonly shape: readonly number[];
  readonly offset: number;
  readonly byteLength: number;
}

export interface GgufHeader {
  readonly version: number;
  readonly metadata: ReadonlyMap<string, GgufValue>;
  readonly places: readonly TensorPlace[];
}

/** The header and the file's bytes, of which the reader gives the first as they are needed. */
export interface HeaderBytes {
  readonly byteLength: number;
  /** The first bytes of the file. */
  first(byteLength: number): Promise<Uint8Array>;
}

/** 'GGUF' as a number. */
const MAGIC = 0x4655_4747;
const VERSIONS: readonly number[] = [2, 3];
const MAX_DIMENSIONS = 4;
const DEFAULT_ALIGNMENT = 32;
const MAX_ALIGNMENT = 2 ** 20;
/** The largest models have some thousands of tensors, and headers some dozens of keys. */
const MAX_ENTRIES = 2 ** 16;
/** Headers without a vocabulary fit in this. */
const FIRST_BYTES = 2 ** 16;

/**
 * Reads a header. One that is longer than what was read of it is read again from its beginning,
 * with at least twice the bytes.
 * @throws {GgufModelError} for what is no GGUF file, damaged, or of a type that is not read
 */
export async function readHeader(file: HeaderBytes): Promise<GgufHeader> {
  const most = Math.min(file.byteLength, MAX_HEADER_BYTES);
  let byteLength = Math.min(most, FIRST_BYTES);
  for (;;) {
    const bytes = await file.first(byteLength);
    try {
      return parseHeader(new HeaderReader(bytes, { fileBytes: file.byteLength }), file.byteLength);
    } catch (error) {
      if (!(error instanceof MoreBytesNeeded)) {
        throw error;
      }
      byteLength = Math.min(most, Math.max(4 * byteLength, error.byteLength));
    }
  }
}

function parseHeader(header: HeaderReader, fileBytes: number): GgufHeader {
  const version = readVersion(header);
  const numTensors = readCount(header, 'tensors');
  const numKeys = readCount(header, 'keys');
  const metadata = new Map<string, GgufValue>();
  for (let i = 0; i < numKeys; i++) {
    const key = header.string('a key');
    requireOnce(metadata, key);
    metadata.set(key, readValue(header, `'${key}'`));
  }
  const alignment = alignmentOf(metadata);
  const infos = new Map<string, TensorPlace>();
  for (let i = 0; i < numTensors; i++) {
    const info = readInfo(header, alignment);
    requireOnce(infos, info.name);
    infos.set(info.name, info);
  }
  const start = Math.ceil(header.at / alignment) * alignment;
  const places = [...infos.values()].map((info) => ({ ...info, offset: start + info.offset }));
  requireApart(places, fileBytes);
  return { version, metadata, places };
}

function readVersion(header: HeaderReader): number {
  const magic = header.u32('the magic number');
  if (magic !== MAGIC) {
    const found = `0x${magic.toString(16).padStart(8, '0')}`;
    throw new GgufModelError(
      `openGguf: expected a file that begins with 'GGUF', got ${found}. It is no GGUF file, or was not downloaded whole.`,
    );
  }
  const version = header.u32('the version');
  if (VERSIONS.includes(version)) {
    return version;
  }
  // The bytes of a small number the other way round.
  if (version % 2 ** 16 === 0) {
    throw new GgufModelError(
      'openGguf: expected a little-endian file, got a big-endian one. Take the file for usual machines.',
    );
  }
  throw new GgufModelError(
    `openGguf: expected version ${VERSIONS.join(' or ')} of GGUF, got ${version}. Convert it with a current llama.cpp.`,
  );
}

function readCount(header: HeaderReader, what: string): number {
  const { at } = header;
  const count = header.u64(`the number of ${what}`);
  if (count > MAX_ENTRIES) {
    throw new GgufModelError(
      `openGguf: expected at most ${MAX_ENTRIES} ${what}, got ${count} at byte ${at}. The file is damaged.`,
    );
  }
  return count;
}

function requireOnce(known: ReadonlyMap<string, unknown>, name: string): void {
  if (known.has(name)) {
    throw new GgufModelError(
      `openGguf: expected '${name}' once, got it twice. The file is damaged.`,
    );
  }
}

function alignmentOf(metadata: ReadonlyMap<string, GgufValue>): number {
  const { type, value } = metadata.get('general.alignment') ?? {
    type: 'u32',
    value: DEFAULT_ALIGNMENT,
  };
  const isPower =
    typeof value === 'number' && value === pow64(2, floorLog2(value)) && value <= MAX_ALIGNMENT;
  if (type !== 'u32' || !isPower) {
    throw new GgufModelError(
      `openGguf: expected general.alignment to be a power of two up to ${MAX_ALIGNMENT} (u32), got ${String(value)} (${type}). The file is damaged.`,
    );
  }
  return value;
}

function readInfo(header: HeaderReader, alignment: number): TensorPlace {
  const name = header.string("a tensor's name");
  const numDimensions = header.u32(`the dimensions of '${name}'`);
  if (numDimensions < 1 || numDimensions > MAX_DIMENSIONS) {
    throw damaged(name, `1 to ${MAX_DIMENSIONS} dimensions`, `${numDimensions}`);
  }
  const sizes = Array.from({ length: numDimensions }, () => header.u64(`a size of '${name}'`));
  const shape = sizes.toReversed();
  const type = typeName(header.u32(`the type of '${name}'`));
  const offset = header.u64(`the offset of '${name}'`);
  const elements = shape.reduce((product, size) => product * size, 1);
  if (elements === 0 || !Number.isSafeInteger(elements)) {
    throw damaged(name, 'sizes of at least 1', `[${shape.join(', ')}]`);
  }
  if (!isTensorType(type)) {
    throw new GgufModelError(
      `openGguf: expected '${name}' in ${TENSOR_TYPES.join(', ')}, got ${type}. Take a file of the model in one of these, such as Q4_K_M or Q8_0.`,
    );
  }
  const { blockElements } = TYPE_INFO[type];
  if (shape.at(-1)! % blockElements !== 0) {
    throw damaged(name, `rows in whole blocks of ${blockElements} (${type})`, `${shape.at(-1)}`);
  }
  if (offset % alignment !== 0) {
    throw damaged(name, `an offset that is a multiple of ${alignment}`, `${offset}`);
  }
  return { name, type, shape, offset, byteLength: storedBytes(type, elements) };
}

/** Refuses tensors that share bytes, and those that go on behind the end of the file. */
function requireApart(places: readonly TensorPlace[], fileBytes: number): void {
  let last: TensorPlace | undefined;
  for (const place of places.toSorted((a, b) => a.offset - b.offset)) {
    const { name, offset, byteLength } = place;
    const end = offset + byteLength;
    if (end > fileBytes) {
      throw new GgufModelError(
        `openGguf: expected '${name}' up to byte ${end}, got the end of the file at ${fileBytes}. It is cut off: get it again.`,
      );
    }
    if (last !== undefined && last.offset + last.byteLength > offset) {
      throw damaged(name, `bytes of its own from ${offset} on`, `some of '${last.name}'`);
    }
    last = place;
  }
}

function damaged(name: string, expected: string, got: string): GgufModelError {
  return new GgufModelError(
    `openGguf: expected ${expected} for '${name}', got ${got}. The file is damaged.`,
  );
}
