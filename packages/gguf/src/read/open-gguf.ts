// Opens GGUF files: the header is read now, and bytes of tensors when they are asked for.

import type { ByteSource, ModelFiles } from '@shardweave/nn';
import { GgufModelError, GgufUsageError } from '../errors.js';
import type { GgufTensorType } from '../tensor-types.js';
import { readHeader, type TensorPlace } from './gguf-header.js';
import type { GgufValue } from './metadata-values.js';

/** A tensor of a file. */
export interface StoredTensor {
  readonly name: string;
  readonly type: GgufTensorType;
  /** The dimensions, outermost first: rows, then columns. */
  readonly shape: readonly number[];
  readonly byteLength: number;
  /**
   * Reads bytes of it, as the file has them.
   * @throws {GgufUsageError} for a range that goes beyond it
   */
  read(range: ByteRange): Promise<Uint8Array>;
}

/** `byteLength` bytes from byte `start` on. */
export interface ByteRange {
  readonly start: number;
  readonly byteLength: number;
}

/** What a file, or a model in several files, says of itself, and its tensors by name. */
export interface Gguf {
  /** The version of the format: 2 or 3. */
  readonly version: number;
  readonly metadata: ReadonlyMap<string, GgufValue>;
  readonly tensors: ReadonlyMap<string, StoredTensor>;
}

/**
 * Opens a file, wherever its bytes are; of a model in several files it opens the one that is given.
 * @throws {GgufModelError} for what is no GGUF file, for one that is cut off, damaged, big-endian
 * or of another version, and for tensors of a type that is not read
 * @example
 * ```ts
 * import { openGguf } from '@shardweave/gguf/read';
 *
 * async function typesIn(file: Blob) {
 *   const read = async (into: Uint8Array, { offset }: { readonly offset: number }) =>
 *     into.set(new Uint8Array(await file.slice(offset, offset + into.byteLength).arrayBuffer()));
 *   const { tensors } = await openGguf({ byteLength: file.size, read });
 *   return [...tensors.values()].map(({ name, type }) => `${name}: ${type}`);
 * }
 * ```
 */
export async function openGguf(source: ByteSource): Promise<Gguf> {
  const first = (byteLength: number) => readRange(source, { start: 0, byteLength });
  const { byteLength } = source;
  const { places, ...said } = await readHeader({ byteLength, first });
  return { ...said, tensors: new Map(places.map((place) => [place.name, tensor(source, place)])) };
}

/** The name of one of several files: its beginning, its number, and how many there are. */
const SHARD = /^(.*)-(\d{5})-of-(\d{5})\.gguf$/s;

/** The names of all files of a model, of which the first is given. */
export function ggufShardNames(first: string): string[] {
  const [, start, , total = ''] = SHARD.exec(first) ?? [];
  return start === undefined
    ? [first]
    : Array.from({ length: Number(total) }, (_, index) => {
        return `${start}-${String(index + 1).padStart(5, '0')}-of-${total}.gguf`;
      });
}

/**
 * Opens a model by the name of its file or, where it is in several, by that of the first, such as
 * `model-00001-of-00003.gguf`.
 * @throws {GgufModelError} as openGguf does, and for files that are missing or not of one model
 */
export async function openGgufShards(files: ModelFiles, name: string): Promise<Gguf> {
  const [, start, number = '00001', total = '00001'] = SHARD.exec(name) ?? [];
  if (Number(number) !== 1) {
    throw new GgufModelError(
      `${name}: expected the first of ${Number(total)} files, got number ${Number(number)}. Name ${start}-00001-of-${total}.gguf, which stands for all.`,
    );
  }
  const first = await openNamed(files, name);
  const count = shardsOf(first);
  if (count !== Number(total)) {
    throw new GgufModelError(
      `${name}: expected a model in as many files as the name says, ${Number(total)}, got one in ${count}. Files of several have names like model-00001-of-${String(count).padStart(5, '0')}.gguf.`,
    );
  }
  const tensors = new Map(first.tensors);
  for (const [i, other] of ggufShardNames(name).slice(1).entries()) {
    const shard = await openNamed(files, other);
    requireNumber(shard, { name: other, index: i + 1, count });
    for (const [key, stored] of shard.tensors) {
      if (tensors.has(key)) {
        throw new GgufModelError(`${other}: expected '${key}' once, got it twice.`);
      }
      tensors.set(key, stored);
    }
  }
  const expected = numberAt(first, 'split.tensors.count') ?? tensors.size;
  if (expected !== tensors.size) {
    throw new GgufModelError(
      `${name}: expected ${expected} tensors in ${count} files, got ${tensors.size}. Files of several models are mixed: get them again.`,
    );
  }
  return { ...first, tensors };
}

async function openNamed(files: ModelFiles, name: string): Promise<Gguf> {
  const source = await files.open(name);
  if (source === undefined) {
    throw new GgufModelError(`${name}: expected the file, got none. Get all files of the model.`);
  }
  try {
    return await openGguf(source);
  } catch (error) {
    if (error instanceof GgufModelError) {
      throw new GgufModelError(`${name}: ${error.message}`, { cause: error });
    }
    throw error;
  }
}

function requireNumber(
  shard: Gguf,
  place: { readonly name: string; readonly index: number; readonly count: number },
): void {
  const { name, index, count } = place;
  if (shardsOf(shard) !== count || numberAt(shard, 'split.no') !== index) {
    throw new GgufModelError(
      `${name}: expected file ${index + 1} of ${count}, got another by its split.no and split.count.`,
    );
  }
}

function shardsOf(gguf: Gguf): number {
  return numberAt(gguf, 'split.count') ?? 1;
}

function numberAt({ metadata }: Gguf, key: string): number | undefined {
  const value = metadata.get(key)?.value;
  return typeof value === 'number' ? value : undefined;
}

function tensor(source: ByteSource, place: TensorPlace): StoredTensor {
  const { offset, ...rest } = place;
  return {
    ...rest,
    read: async ({ start, byteLength }) => {
      const isWithin = [start, byteLength].every((value) => Number.isInteger(value) && value >= 0);
      if (!isWithin || start + byteLength > rest.byteLength) {
        throw new GgufUsageError(
          `read: expected bytes of '${rest.name}', which has ${rest.byteLength}, got ${byteLength} from ${start} on.`,
        );
      }
      return await readRange(source, { start: offset + start, byteLength });
    },
  };
}

async function readRange(
  source: ByteSource,
  { start, byteLength }: ByteRange,
): Promise<Uint8Array> {
  const bytes = new Uint8Array(byteLength);
  if (byteLength > 0) {
    await source.read(bytes, { offset: start });
  }
  return bytes;
}
