// The list of what a generation holds: one line of JSON and, below it, the line's checksum. It is
// replaced by a rename, so there is always a whole one, and what it names is never overwritten.

import { crc32 } from 'node:zlib';
import { StoreCorruptError } from '../errors.js';
import type { Place } from './file-names.js';
import { CHUNK_BYTES, type StoredValue } from './shard-file.js';

const FORMAT = 'shardweave-store';
const VERSION = 1;

/** The place of a key's value: one of the files, or slots, that belong to the key's number. */
export interface Entry extends StoredValue, Place {}

export interface Manifest {
  readonly generation: number;
  readonly entries: ReadonlyMap<string, Entry>;
}

interface Stored {
  readonly format: string;
  readonly version: number;
  readonly chunkBytes: number;
  readonly generation: number;
  /** By key: id, slot, length and checksums. */
  readonly entries: Readonly<Record<string, [number, number, number, ...number[]]>>;
}

export function encodeManifest({ generation, entries }: Manifest): Uint8Array {
  const stored: Stored = {
    format: FORMAT,
    version: VERSION,
    chunkBytes: CHUNK_BYTES,
    generation,
    entries: Object.fromEntries(
      [...entries].map(([key, { id, slot, byteLength, checksums }]) => [
        key,
        [id, slot, byteLength, ...checksums],
      ]),
    ),
  };
  const line = JSON.stringify(stored);
  return new TextEncoder().encode(`${line}\n${crc32(line)}\n`);
}

/** The manifest in `bytes`. Throws a StoreCorruptError whose text begins with `where`. */
export function decodeManifest(bytes: Uint8Array, where: string): Manifest {
  const [line = '', checksum] = new TextDecoder().decode(bytes).split('\n');
  if (checksum !== String(crc32(line))) {
    throw new StoreCorruptError(`${where}: expected a manifest with its checksum, got another one`);
  }
  const stored = JSON.parse(line) as Stored;
  const isOurs = stored.format === FORMAT && stored.version === VERSION;
  if (!isOurs || stored.chunkBytes !== CHUNK_BYTES) {
    throw new StoreCorruptError(
      `${where}: expected ${FORMAT} version ${VERSION} with chunks of ${CHUNK_BYTES} bytes, ` +
        `got ${stored.format} version ${stored.version} with ${stored.chunkBytes}`,
    );
  }
  const entries = Object.entries(stored.entries).map(
    ([key, [id, slot, byteLength, ...checksums]]) =>
      [key, { id, slot, byteLength, checksums }] as const,
  );
  return { generation: stored.generation, entries: new Map(entries) };
}
