// What a sharded save consists of, and where its pieces lie: the seam of storage, and the index that
// every rank reads first.

import { byteSize } from '@shardweave/dtypes';
import { type DType, elementCountOf, type Shape } from '@shardweave/tensor-core';
import { FsdpStateDictError } from '../errors.js';

/** Takes whole files; a ShardStore is one. The array may be changed once the promise settles. */
export interface ShardSink {
  write(key: string, bytes: Uint8Array): Promise<void>;
}

/** Gives ranges of files; a ShardStore is one. */
export interface ShardReader {
  /** undefined where there is no such file. */
  byteLength(key: string): number | undefined | Promise<number | undefined>;
  /** Fills `into` from byte `offset` on. */
  read(key: string, into: Uint8Array, options: { readonly offset: number }): Promise<void>;
}

/** Elements [start, end) of a tensor, at `byteOffset` of a file. */
export interface SavedPiece {
  readonly start: number;
  readonly end: number;
  readonly file: string;
  readonly byteOffset: number;
}

export interface SavedTensor {
  readonly dtype: DType;
  readonly shape: Shape;
  /** Ascending and without gaps. */
  readonly pieces: readonly SavedPiece[];
}

/** Optimizer state but for its tensors, which are `tensors` of their own: see stateKey. */
export interface SavedOptimizer {
  /** By parameter; those without state are absent. */
  readonly state: Readonly<
    Record<string, { readonly step: number; readonly tensors: readonly string[] }>
  >;
  readonly paramGroups: readonly Readonly<Record<string, unknown>>[];
}

export interface ShardIndex {
  readonly format: 'shardweave-shards';
  readonly version: 1;
  readonly worldSize: number;
  readonly tensors: Readonly<Record<string, SavedTensor>>;
  readonly optimizer: SavedOptimizer | undefined;
  readonly extra: Readonly<Record<string, unknown>>;
}

/** Elements of a file that are on the host at once while loading: 4 MiB of f32. Not measured. */
export const LOAD_PART_ELEMENTS = 2 ** 20;

export function indexKey(prefix: string): string {
  return `${prefix}index.json`;
}

/** Name of an optimizer's state tensor of a parameter. */
export function stateKey(parameter: string, tensor: string): string {
  return `optimizer.${tensor}.${parameter}`;
}

/** @throws {FsdpStateDictError} where there is no index, or what is there is none */
export async function readIndex(reader: ShardReader, prefix: string): Promise<ShardIndex> {
  const key = indexKey(prefix);
  const byteLength = await reader.byteLength(key);
  if (byteLength === undefined) {
    throw new FsdpStateDictError(
      `loadShards: expected '${key}', got nothing there. A save that did not end leaves no index.`,
    );
  }
  const bytes = new Uint8Array(byteLength);
  await reader.read(key, bytes, { offset: 0 });
  const index = parseIndex(bytes, key);
  for (const [name, tensor] of Object.entries(index.tensors)) {
    checkPieces(name, tensor);
  }
  return index;
}

/** Elements [start, end) of a saved tensor as bytes, in runs of at most LOAD_PART_ELEMENTS. */
export async function* readRange(
  reader: ShardReader,
  { dtype, pieces }: SavedTensor,
  range: { readonly start: number; readonly end: number },
): AsyncGenerator<{ readonly start: number; readonly bytes: Uint8Array }> {
  for (const piece of pieces) {
    const end = Math.min(range.end, piece.end);
    let start = Math.max(range.start, piece.start);
    while (start < end) {
      const count = Math.min(end - start, LOAD_PART_ELEMENTS);
      const bytes = new Uint8Array(count * byteSize(dtype));
      const offset = piece.byteOffset + (start - piece.start) * byteSize(dtype);
      await reader.read(piece.file, bytes, { offset });
      yield { start, bytes };
      start += count;
    }
  }
}

function parseIndex(bytes: Uint8Array, key: string): ShardIndex {
  let parsed: unknown;
  try {
    parsed = JSON.parse(new TextDecoder().decode(bytes));
  } catch {
    parsed = undefined;
  }
  const { format, version } = (parsed ?? {}) as Partial<ShardIndex>;
  if (format === 'shardweave-shards' && version === 1) {
    return parsed as ShardIndex;
  }
  throw new FsdpStateDictError(
    `loadShards: expected an index of version 1 in '${key}', got ${format === 'shardweave-shards' ? `version ${version}` : 'something else'}.`,
  );
}

function checkPieces(name: string, { shape, pieces }: SavedTensor): void {
  let end = 0;
  for (const piece of pieces) {
    if (piece.start !== end) {
      break;
    }
    end = piece.end;
  }
  const size = elementCountOf(shape);
  if (end === size) {
    return;
  }
  throw new FsdpStateDictError(
    `loadShards: expected all ${size} elements of '${name}' in the index, got a gap at element ${end}. Merge the files of all ranks of one save.`,
    { missing: [name] },
  );
}
