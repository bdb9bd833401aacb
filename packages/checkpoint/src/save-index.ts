// What a save consists of: files of pieces one behind the other, and an index that says where each
// piece lies. The index is written last and replaced as a whole, so it names the one save that is
// valid.

import { byteSize } from '@shardweave/dtypes';
import { crc32 } from './crc32.js';
import type { TensorSpec } from './held-piece.js';

export const FORMAT = 'shardweave-checkpoint';
export const VERSION = 2;

/** The name of the JSON file that lists the tensors and files of a save. */
export const INDEX_FILE = 'index.json';

/**
 * Bytes of a piece at most, and so of what writers and readers have of a tensor at once. A rank
 * that loads a part reads whole pieces, to check them: up to one more at either end of a parameter.
 * The size is that of shard-store's chunks, whose checksum takes 0.35 ms.
 */
export const PIECE_BYTES = 2 ** 20;

/** Elements [start, end) of a tensor at `byteOffset` of a file. */
export interface SavedPiece {
  readonly start: number;
  readonly end: number;
  readonly file: string;
  readonly byteOffset: number;
  /** CRC-32 of its bytes. */
  readonly checksum: number;
}

/** A tensor of a save with the pieces that make it up. */
export interface SavedTensor extends TensorSpec {
  /** Ascending and without gaps. */
  readonly pieces: readonly SavedPiece[];
}

/** Optimizer state but for its tensors, which are tensors of kind `state`. */
export interface SavedOptimizer {
  /** Its class, such as `AdamW`. */
  readonly kind: string;
  /** Steps taken, by parameter; those without state are absent. */
  readonly steps: Readonly<Record<string, number>>;
  /** Options of each group, with the names of its parameters as `params`. */
  readonly groups: readonly Readonly<Record<string, unknown>>[];
}

/** The contents of a save, as its index file lists them. */
export interface SaveIndex {
  /** Names this save and its files; another for each. */
  readonly id: string;
  /** Bytes of each file. */
  readonly files: Readonly<Record<string, number>>;
  readonly tensors: readonly SavedTensor[];
  readonly optimizer: SavedOptimizer | undefined;
  readonly extra: Readonly<Record<string, unknown>>;
}

/** One process's files of a save, and what is in them. Plain JSON, for whoever publishes. */
export interface SavedPart {
  /** Bytes of each file. */
  readonly files: Readonly<Record<string, number>>;
  readonly tensors: readonly SavedTensor[];
}

/** `[start, end, number of the file, byteOffset, checksum]`: pieces are most of an index. */
export type PieceRow = readonly [number, number, number, number, number];

/** The index as its file has it. */
export interface IndexFile {
  readonly format: typeof FORMAT;
  readonly version: typeof VERSION;
  readonly id: string;
  readonly files: readonly { readonly name: string; readonly byteLength: number }[];
  readonly tensors: readonly (TensorSpec & { readonly pieces: readonly PieceRow[] })[];
  readonly optimizer: SavedOptimizer | null;
  readonly extra: Readonly<Record<string, unknown>>;
}

/** What stands before and behind the index in its file; `#` are the digits of its checksum. */
const HEAD = '{"crc32":"########","index":';
const TAIL = '}\n';

export function encodeIndex({ id, files, tensors, optimizer, extra }: SaveIndex): Uint8Array {
  const names = Object.keys(files);
  const numbers = new Map(names.map((name, number) => [name, number]));
  const file: IndexFile = {
    format: FORMAT,
    version: VERSION,
    id,
    files: names.map((name) => ({ name, byteLength: files[name]! })),
    tensors: tensors.map(({ pieces, ...spec }) => ({
      ...spec,
      pieces: pieces.map(({ start, end, file: name, byteOffset, checksum }) => {
        return [start, end, numbers.get(name)!, byteOffset, checksum] as const;
      }),
    })),
    optimizer: optimizer ?? null,
    extra,
  };
  return new TextEncoder().encode(enclosed(JSON.stringify(file)));
}

/** Whether the file is the index with its checksum before it, to the byte. */
export function isChecked(text: string): boolean {
  return text === enclosed(text.slice(HEAD.length, -TAIL.length));
}

function enclosed(index: string): string {
  const digits = hex(crc32(new TextEncoder().encode(index)));
  return `${HEAD.replace('########', digits)}${index}${TAIL}`;
}

export function pieceByteLength(
  { start, end }: { readonly start: number; readonly end: number },
  { dtype }: Pick<TensorSpec, 'dtype'>,
): number {
  return (end - start) * byteSize(dtype);
}

export function hex(value: number): string {
  return value.toString(16).padStart(8, '0');
}

// ---- names of files ----------------------------------------------------------------------------

const PIECES = /^(save-\d{6,}-[0-9a-f]{8})-[\w-]+\.pieces$/;

export function pieceFile(id: string, part: string): string {
  return `${id}-${part}.pieces`;
}

/** The save that a file is named after; undefined where it belongs to somebody else. */
export function saveOf(file: string): string | undefined {
  return PIECES.exec(file)?.[1];
}

/** An id behind that of the save before, which two savers never choose alike. */
export function idAfter(former: string | undefined): string {
  const count = former === undefined ? 0 : Number(former.split('-')[1]);
  const [random] = globalThis.crypto.getRandomValues(new Uint32Array(1));
  return `save-${String(count + 1).padStart(6, '0')}-${hex(random!)}`;
}
