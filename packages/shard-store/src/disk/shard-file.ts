// One value in one file: written and read in chunks, each with a checksum that the manifest keeps.
// The checksum of a chunk is computed while the next one is on its way.

import { crc32 } from 'node:zlib';
import { StoreCorruptError } from '../errors.js';
import { type FileLayer, type OpenFile, withFile, writeFully } from './file-layer.js';

/**
 * The size of a chunk. Its crc32 takes 0.35 ms of the event loop (2.8 GiB/s on one core); the size
 * is not tuned otherwise.
 */
export const CHUNK_BYTES = 2 ** 20;

export interface StoredValue {
  readonly byteLength: number;
  /** One crc32 for each chunk. */
  readonly checksums: readonly number[];
}

/**
 * Writes `bytes` over what the file holds, and so keeps its blocks: even a full disk has room for
 * them. Where the file has other names, their contents stay, and a new file begins.
 */
export function writeShard(
  files: FileLayer,
  path: string,
  bytes: Uint8Array,
): Promise<StoredValue> {
  return withFile(openAlone(files, path), async (file) => {
    const checksums: number[] = [];
    for (let start = 0; start < bytes.byteLength; start += CHUNK_BYTES) {
      const chunk = bytes.subarray(start, start + CHUNK_BYTES);
      await during(writeFully(file, chunk, start), () => checksums.push(crc32(chunk)));
    }
    await file.truncate(bytes.byteLength);
    return { byteLength: bytes.byteLength, checksums };
  });
}

/** The file to write, which has no other name than this one. */
async function openAlone(files: FileLayer, path: string): Promise<OpenFile> {
  const file = await files.openToWrite(path);
  let isAlone = false;
  try {
    isAlone = (await file.linkCount()) === 1;
  } finally {
    if (!isAlone) {
      await file.close();
    }
  }
  if (isAlone) {
    return file;
  }
  await files.unlink(path);
  return files.openToWrite(path);
}

/**
 * Fills `into` with the value from `offset` on; chunks that it covers in part go through `scratch`.
 */
export function readShard(
  files: FileLayer,
  path: string,
  value: StoredValue,
  target: { readonly into: Uint8Array; readonly offset: number; readonly scratch: Uint8Array },
): Promise<void> {
  const { into, offset, scratch } = target;
  const end = offset + into.byteLength;
  return withFile(files.openToRead(path), async (file) => {
    let verify = () => {};
    for (let chunk = Math.floor(offset / CHUNK_BYTES); chunk * CHUNK_BYTES < end; chunk++) {
      const start = chunk * CHUNK_BYTES;
      const length = Math.min(CHUNK_BYTES, value.byteLength - start);
      const isWhole = start >= offset && start + length <= end;
      const bytes = isWhole
        ? into.subarray(start - offset, start - offset + length)
        : scratch.subarray(0, length);
      await during(readFully(file, bytes, start), verify);
      const check = () => verifyChunk(bytes, value.checksums[chunk]!, start);
      verify = isWhole ? check : () => {};
      if (!isWhole) {
        check();
        const from = Math.max(start, offset);
        const part = bytes.subarray(from - start, Math.min(length, end - start));
        into.set(part, from - offset);
      }
    }
    verify();
  });
}

/**
 * Does `work` while `call` is on its way, and settles when the call is done, even where `work`
 * fails: until then the call uses the file, and an array that is the caller's afterwards.
 */
async function during(call: Promise<void>, work: () => void): Promise<void> {
  try {
    work();
  } catch (error) {
    await call.catch(() => {}); // the first error is the one to tell
    throw error;
  }
  await call;
}

async function readFully(file: OpenFile, into: Uint8Array, position: number): Promise<void> {
  for (let done = 0; done < into.byteLength; ) {
    const count = await file.read(into.subarray(done), position + done);
    if (count === 0) {
      throw new StoreCorruptError(
        `expected ${into.byteLength} bytes from ${position} on, got ${done}: the file is too short`,
      );
    }
    done += count;
  }
}

function verifyChunk(bytes: Uint8Array, expected: number, position: number): void {
  const actual = crc32(bytes);
  if (actual === expected) {
    return;
  }
  throw new StoreCorruptError(
    `expected checksum ${hex(expected)} of the ${bytes.byteLength} bytes from ${position} on, ` +
      `got ${hex(actual)}`,
  );
}

function hex(value: number): string {
  return value.toString(16).padStart(8, '0');
}
