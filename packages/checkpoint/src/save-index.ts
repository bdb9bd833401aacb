// What a save consists of: files of pieces one after another, and an index that says where each
// piece lies. The index is written last and replaced as a whole, so it always names the one valid
// save.

import { byteSize } from '@shardweave/dtypes';
import { crc32 } from './crc32.js';
import type { TensorSpec } from './held-piece.js';

export const FORMAT = 'shardweave-checkpoint';
export const VERSION = 2;

/** The name of the JSON file that lists the tensors and files of a save. */
export const INDEX_FILE = 'index.json';

/**
 * The most bytes of a piece, and so of what writers and readers hold of a tensor at once. A rank
 * that loads a part of a parameter reads whole pieces, to check them: up to one more piece at
 * either end. The size is that of shard-store's chunks; its checksum takes 0.35 ms.
 */
export const PIECE_BYTES = 2 ** 20;

/** The elements [start, end) of a tensor, which lie at `byteOffset` of a file. */
export interface SavedPiece {
  readonly start: number;
  readonly end: number;
  readonly file: string;
  readonly byteOffset: number;
  /** The CRC-32 of its bytes. */
  readonly checksum: number;
}

/** A tensor of a save with the pieces that make it up. */
export interface SavedTensor extends TensorSpec {
  /** The pieces, ascending and without gaps. */
  readonly pieces: readonly SavedPiece[];
}

/** The state of an optimizer without its tensors, which are tensors of kind `state`. */
export interface SavedOptimizer {
  /** Its class, such as `AdamW`. */
  readonly kind: string;
  /** The number of steps taken, by parameter; parameters without state are absent. */
  readonly steps: Readonly<Record<string, number>>;
  /** The options of each group, with the names of its parameters as `params`. */
  readonly groups: readonly Readonly<Record<string, unknown>>[];
}

/** The contents of a save, as its index file lists them. */
export interface SaveIndex {
  /** The name of this save and of its files; every save has another one. */
  readonly id: string;
  /** The byte length of each file. */
  readonly files: Readonly<Record<string, number>>;
  readonly tensors: readonly SavedTensor[];
  readonly optimizer: SavedOptimizer | undefined;
  readonly extra: Readonly<Record<string, unknown>>;
}

/**
 * One process's files of a save, and what is in them. It is plain JSON, so that it can be sent to
 * the process that publishes.
 */
export interface SavedPart {
  /** The byte length of each file. */
  readonly files: Readonly<Record<string, number>>;
  readonly tensors: readonly SavedTensor[];
}

/**
 * `[start, end, number of the file, byteOffset, checksum]`. Rows keep the index short, for most of
 * it is pieces.
 */
export type PieceRow = readonly [number, number, number, number, number];

/** The index as it stands in its file. */
export interface IndexFile {
  readonly format: typeof FORMAT;
  readonly version: typeof VERSION;
  readonly id: string;
  readonly files: readonly { readonly name: string; readonly byteLength: number }[];
  readonly tensors: readonly (TensorSpec & { readonly pieces: readonly PieceRow[] })[];
  readonly optimizer: SavedOptimizer | null;
  readonly extra: Readonly<Record<string, unknown>>;
}

/** The text before and after the index in its file; `#` are the digits of its checksum. */
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

/** Whether the text is exactly the index with its checksum before it. */
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

/** The save that a file is named after; undefined where the file is not one of a save. */
export function saveOf(file: string): string | undefined {
  return PIECES.exec(file)?.[1];
}

/** The number of a save: 12 of `save-000012-0a1b2c3d`. */
export function countOf(id: string): number {
  return Number(id.split('-')[1]);
}

/**
 * An id that counts on from the save before. Its random part keeps two savers from choosing the
 * same one.
 */
export function idAfter(former: string | undefined): string {
  const count = former === undefined ? 0 : countOf(former);
  const [random] = globalThis.crypto.getRandomValues(new Uint32Array(1));
  return `save-${String(count + 1).padStart(6, '0')}-${hex(random!)}`;
}
