// One tensor of a state dict: its bytes on the host, on the device, or read when they are wanted.

import { byteSize, FNV_BASIS, fnv1a, fromF32Array, toF32Array } from '@shardweave/dtypes';
import { type DType, elementCountOf, type Tensor } from '@shardweave/tensor-core';
import { StateDictError } from '../errors.js';
import type { ElementRange, FileDType, HostTensor, LazyTensor } from '../host-tensor.js';

/** One tensor of a state dict: raw little-endian elements. */
export interface StateEntry<D extends FileDType = DType> extends HostTensor<D> {
  /**
   * Holds the elements with stateDictDevice 'device', where `data` is empty; the caller has to
   * dispose it.
   */
  readonly tensor?: Tensor;
}

/** Where a state dict goes. */
export interface StateDictPlaces {
  /**
   * 'host': bytes. 'device': tensors, which the caller has to dispose. Default: the wrapper's
   * option, else 'host'.
   */
  readonly stateDictDevice?: 'host' | 'device';
  /**
   * Only the first rank gets entries. The others get an empty dict and never hold more than they
   * have anyway, but all ranks take part. Default: the wrapper's option, else false.
   */
  readonly stateDictOnRank0Only?: boolean;
}

/** Tensors by name. */
export type StateDict = Map<string, StateEntry>;

/** An entry that is loaded: its elements are there already, or are read when they are loaded. */
export type GivenEntry = StateEntry<FileDType> | LazyTensor;

/**
 * The elements of an entry that checkState has let pass, or a range of them, as bytes of `dtype`;
 * floats are converted.
 * @throws {StateDictError} for a lazy tensor that gives another number of bytes
 */
export async function bytesOf(
  name: string,
  entry: GivenEntry,
  dtype: DType,
  part?: ElementRange,
  room?: PartRoom,
): Promise<Uint8Array> {
  return convertBytes(await entryBytes(name, entry, part, room), entry.dtype as DType, dtype);
}

/**
 * Where the parts of entries are read, one after another.
 *
 * Note [one room]
 * Bytes that each part had for itself would stay until garbage is collected: 570 MiB of a model of
 * 0.6B parameters were still there in its first step.
 */
export class PartRoom {
  #bytes = new Uint8Array(0);

  /** Room for so many bytes, in place of what was there. */
  take(byteLength: number): Uint8Array {
    if (this.#bytes.byteLength < byteLength) {
      this.#bytes = new Uint8Array(byteLength);
    }
    return this.#bytes;
  }
}

/** The most bytes of an entry that are on the host at once where it can be read in parts. */
const PART_BYTES = 8 * 2 ** 20;

/**
 * The elements of an entry, or a range of them, one part after another, each as `bytesOf` gives it.
 * An entry that can only be read whole is one part. The bytes of one are gone when the next is
 * asked for.
 */
export async function* partsOfEntry(
  name: string,
  entry: GivenEntry,
  {
    dtype,
    range,
    room,
  }: { readonly dtype: DType; readonly range?: ElementRange; readonly room: PartRoom },
): AsyncGenerator<ElementRange & { readonly bytes: Uint8Array }, void, undefined> {
  const { first, count } = range ?? { first: 0, count: elementCountOf(entry.shape) };
  const isCut = 'read' in entry ? entry.readPart !== undefined : entry.tensor === undefined;
  const most = isCut ? PART_BYTES / byteSize(dtype) : count;
  for (let done = 0; done < count; done += most) {
    const part = { first: first + done, count: Math.min(most, count - done) };
    yield { ...part, bytes: await bytesOf(name, entry, dtype, isCut ? part : range, room) };
  }
}

/** The bytes themselves where the dtypes are equal, else converted ones. */
export function convertBytes(bytes: Uint8Array, from: DType, to: DType): Uint8Array {
  return from === to ? bytes : fromF32Array(toF32Array(bytes, from), to);
}

/** The elements of an entry, or a range of them, in its own dtype; throws as bytesOf does. */
export async function entryBytes(
  name: string,
  entry: GivenEntry,
  part?: ElementRange,
  room?: PartRoom,
): Promise<Uint8Array> {
  if (part !== undefined && !('readPart' in entry && entry.readPart !== undefined)) {
    const size = byteSize(entry.dtype as DType);
    const whole = await entryBytes(name, entry);
    return whole.subarray(part.first * size, (part.first + part.count) * size);
  }
  if (!('read' in entry)) {
    return entry.tensor === undefined ? entry.data : entry.tensor.toBytes();
  }
  const count = part?.count ?? elementCountOf(entry.shape);
  const byteLength = count * byteSize(entry.dtype as DType);
  const bytes = await (part === undefined
    ? entry.read()
    : entry.readPart!(part, room?.take(byteLength)));
  if (bytes.byteLength !== byteLength) {
    throw new StateDictError(
      `loadStateDict: expected ${byteLength} bytes of '${name}', ${entry.dtype} [${entry.shape.join(', ')}], got ${bytes.byteLength}. What was loaded before it is mixed with it: load again.`,
      { mismatched: [name] },
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
