// One tensor of a state dict, and the check of a dict against what is expected.

import { byteSize, FNV_BASIS, fnv1a, fromF32Array, toF32Array } from '@shardweave/dtypes';
import { type ElementRange, type LazyTensor, StateDictError } from '@shardweave/nn';
import { isConvertible } from '@shardweave/nn/flat';
import { type DType, elementCountOf, type Shape, type Tensor } from '@shardweave/tensor-core';

/** One tensor of a state dict: raw little-endian elements. */
export interface StateEntry {
  readonly dtype: DType;
  readonly shape: Shape;
  /** Empty where `tensor` holds the elements. */
  readonly data: Uint8Array;
  /** Holds the elements with stateDictDevice 'device'; the caller has to dispose it. */
  readonly tensor?: Tensor;
}

/**
 * Tensors by name. stateDict has whole parameters and buffers under their names in the bare module;
 * localStateDict has this rank's shards under the keys that localMetadataDict lists, and buffers.
 */
export type StateDict = Map<string, StateEntry>;

/**
 * An entry that is loaded: its elements are there already, or are read when their unit is loaded.
 */
export type GivenEntry = StateEntry | LazyTensor;

export type ExpectedEntry = Pick<StateEntry, 'dtype' | 'shape'>;

/** An entry's elements, or a range of them, as bytes of `dtype`; floats are converted. */
export async function bytesOf(
  entry: GivenEntry,
  dtype: DType,
  part?: ElementRange,
): Promise<Uint8Array> {
  const from = entry.dtype as DType; // checkEntries has refused other dtypes
  return convertBytes(await entryBytes(entry, part), from, dtype);
}

/** The bytes themselves where the dtypes are equal, else converted ones. */
export function convertBytes(bytes: Uint8Array, from: DType, to: DType): Uint8Array {
  return from === to ? bytes : fromF32Array(toF32Array(bytes, from), to);
}

/** @throws {StateDictError} naming what is missing, unexpected or misshapen */
export function checkEntries(
  operation: string,
  entries: ReadonlyMap<string, GivenEntry>,
  expected: ReadonlyMap<string, ExpectedEntry>,
  options: { readonly isStrict: boolean },
): void {
  const { isStrict } = options;
  const missing = isStrict ? [...expected.keys()].filter((name) => !entries.has(name)) : [];
  const unexpected = isStrict ? [...entries.keys()].filter((name) => !expected.has(name)) : [];
  const misshapen = [...expected].filter(([name, wanted]) => {
    const entry = entries.get(name);
    return entry !== undefined && !isFitting(entry, wanted);
  });
  if (missing.length + unexpected.length + misshapen.length === 0) {
    return;
  }
  const texts = misshapen.map(([name, wanted]) => {
    const entry = entries.get(name)!;
    return `${name}: expected ${wanted.dtype} [${wanted.shape.join(', ')}], got ${entry.dtype} [${entry.shape.join(', ')}]${lengthText(entry)}`;
  });
  throw new StateDictError(
    `${operation}: expected the ${expected.size} entries of this module. Missing: ${missing.join(', ') || 'none'}. Unexpected: ${unexpected.join(', ') || 'none'}. Misshapen: ${texts.join('; ') || 'none'}.`,
    { missing, unexpected, mismatched: misshapen.map(([name]) => name) },
  );
}

/**
 * Says how long an entry is where it has bytes; a lazy tensor is taken to be as long as its shape.
 */
function lengthText(entry: GivenEntry): string {
  if ('read' in entry) {
    return '';
  }
  const { tensor, data, dtype } = entry;
  return ` of ${tensor === undefined ? data.byteLength : tensor.size * byteSize(dtype)} bytes`;
}

function isFitting(entry: GivenEntry, { dtype, shape }: ExpectedEntry): boolean {
  if (!isConvertible(entry.dtype, dtype)) {
    return false;
  }
  const byteLength = elementCountOf(shape) * byteSize(entry.dtype);
  const isThere = !('read' in entry) && entry.tensor === undefined;
  return (
    entry.shape.length === shape.length &&
    entry.shape.every((dim, i) => dim === shape[i]) &&
    (!isThere || entry.data.byteLength === byteLength)
  );
}

async function entryBytes(entry: GivenEntry, part?: ElementRange): Promise<Uint8Array> {
  if (part !== undefined && !('readPart' in entry && entry.readPart !== undefined)) {
    const size = byteSize(entry.dtype as DType);
    const whole = await entryBytes(entry);
    return whole.subarray(part.first * size, (part.first + part.count) * size);
  }
  if (!('read' in entry)) {
    return entry.tensor === undefined ? entry.data : entry.tensor.toBytes();
  }
  const bytes = await (part === undefined ? entry.read() : entry.readPart!(part));
  const count = part?.count ?? elementCountOf(entry.shape);
  const byteLength = count * byteSize(entry.dtype as DType);
  if (bytes.byteLength !== byteLength) {
    throw new StateDictError(
      `loadStateDict: expected ${byteLength} bytes of a lazy tensor ${entry.dtype} [${entry.shape.join(', ')}], got ${bytes.byteLength}. What was loaded before it is mixed with it: load again.`,
    );
  }
  return bytes;
}

/** A second basis for the same hash: the two 32-bit hashes together make 64 bits. */
const SECOND_BASIS = 0x9dc5811c;

/**
 * Names, shapes and values as a short text; lazy tensors and those on the device count without
 * their values.
 */
export function digestOf(entries: Iterable<readonly [string, GivenEntry]>): string {
  let [low, high] = [FNV_BASIS, SECOND_BASIS];
  let count = 0;
  const add = (words: Uint32Array) => {
    low = fnv1a(words, low);
    high = fnv1a(words, high);
  };
  for (const [name, entry] of entries) {
    const { dtype, shape } = entry;
    count += 1;
    add(wordsOf(new TextEncoder().encode(JSON.stringify([name, dtype, shape]))));
    add(wordsOf('read' in entry ? new Uint8Array(0) : entry.data));
  }
  return `${count} ${low} ${high}`;
}

/** The bytes as 32-bit words, with zeros filling up the last. */
function wordsOf(bytes: Uint8Array): Uint32Array {
  if (bytes.byteOffset % 4 === 0 && bytes.byteLength % 4 === 0) {
    return new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4);
  }
  const padded = new Uint8Array(Math.ceil(bytes.byteLength / 4) * 4);
  padded.set(bytes);
  return new Uint32Array(padded.buffer);
}
