// Writes files and directories that are there whole or not at all: under a name that only this
// command uses, because two may write the same at once, and renamed when they are on the disk.

import { randomBytes } from 'node:crypto';
import {
  closeSync,
  fsyncSync,
  openSync,
  realpathSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { type FileHandle, open, readdir, rename, rm, rmdir } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { namingDisk } from './disk-room.js';
import { makeDirectory } from './make-directory.js';

export interface WriteOptions {
  /** Ends the writing between two pieces, with its reason; nothing is left of them. */
  readonly signal?: AbortSignal | undefined;
}

/** A file that is to be written, such as a ModelFile. */
export interface FilePieces {
  /** Its name, or its path where a directory of files has folders. */
  readonly name: string;
  readonly byteLength: number;
  pieces(): AsyncIterable<Uint8Array> | Iterable<Uint8Array>;
}

/** A file of a text. */
export function textFile(name: string, text: string): FilePieces {
  const bytes = new TextEncoder().encode(text);
  return { name, byteLength: bytes.byteLength, pieces: () => [bytes] };
}

export interface PiecesOptions extends WriteOptions {
  /** The number of all bytes, for the error of a full disk. */
  readonly byteLength?: number | undefined;
  /** What takes the place of the first bytes once all pieces are written and can be counted. */
  readonly head?: (() => Uint8Array) | undefined;
}

/**
 * Writes `pieces` one after another. An earlier file of that name stays until all are written.
 * @throws {DiskFullError} where the disk has no room for them
 */
export async function writePieces(
  path: string,
  pieces: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
  { signal, byteLength, head }: PiecesOptions = {},
): Promise<void> {
  const part = partOf(path);
  try {
    const file = await open(part, 'w');
    try {
      for await (const piece of pieces) {
        signal?.throwIfAborted();
        await writeAll(file, piece);
      }
      if (head !== undefined) {
        await writeAll(file, head(), 0);
      }
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(part, path);
  } catch (error) {
    await rm(part, { force: true });
    throw namingDisk(error, path, byteLength);
  }
}

/**
 * Writes a text in place of an earlier file of that name. Throws as writePieces does. What is no
 * file, such as /dev/stdout, is written as it is: a rename would take its place.
 */
export function writeText(given: string, text: string): void {
  const found = statSync(given, { throwIfNoEntry: false });
  if (found?.isFile() === false) {
    writeFileSync(given, text);
    return;
  }
  const path = found === undefined ? given : realpathSync(given);
  const part = partOf(path);
  try {
    const file = openSync(part, 'w');
    try {
      writeFileSync(file, text);
      fsyncSync(file);
    } finally {
      closeSync(file);
    }
    renameSync(part, path);
  } catch (error) {
    rmSync(part, { force: true });
    throw namingDisk(error, path, Buffer.byteLength(text));
  }
}

/**
 * Writes files into a new or empty directory, or in place of an earlier one, which stays until all
 * are written.
 * @throws {DiskFullError} where the disk has no room for them
 * @throws what the system reports where something has come to lie there meanwhile
 */
export async function writeDirectory(
  path: string,
  files: Iterable<FilePieces>,
  { signal, isReplacing }: WriteOptions & { readonly isReplacing?: boolean } = {},
): Promise<void> {
  const all = [...files];
  const fill = async (part: string) => {
    for (const { name, byteLength, pieces } of all) {
      const place = join(part, name);
      makeDirectory(dirname(place));
      await writePieces(place, pieces(), { signal, byteLength });
    }
  };
  const byteLength = all.reduce((sum, file) => sum + file.byteLength, 0);
  await fillDirectory(path, fill, { isReplacing, byteLength });
}

/** Lets `fill` write what writeDirectory is given. Throws as that does. */
export async function fillDirectory(
  path: string,
  fill: (part: string) => Promise<void>,
  options: {
    readonly isReplacing?: boolean | undefined;
    readonly byteLength?: number | undefined;
  } = {},
): Promise<void> {
  const part = partOf(path);
  const earlier = partOf(path);
  try {
    makeDirectory(part);
    await fill(part);
    await (options.isReplacing ? rename(path, earlier) : rmdir(path)).catch(ifMissing);
    await rename(part, path);
  } catch (error) {
    await rename(earlier, path).catch(ifMissing);
    await rm(part, { recursive: true, force: true });
    throw namingDisk(error, path, options.byteLength);
  }
  // What can't be removed is left to removeUnfinished; the new directory is whole.
  await rm(earlier, { recursive: true, force: true }).catch(() => undefined);
}

/**
 * Removes what killed commands had not finished writing under this name. Whoever calls it is the
 * only one that writes there.
 */
export async function removeUnfinished(path: string): Promise<void> {
  const names = ((await readdir(dirname(path)).catch(ifMissing)) ?? []).filter(
    (name) => name.startsWith(`${basename(path)}.`) && PART.test(name),
  );
  for (const name of names) {
    await rm(join(dirname(path), name), { recursive: true, force: true });
  }
}

const PART = /\.[0-9a-f]{12}\.part$/;

function partOf(path: string): string {
  return `${path}.${randomBytes(6).toString('hex')}.part`;
}

function ifMissing(error: NodeJS.ErrnoException): undefined {
  if (error.code !== 'ENOENT') {
    throw error;
  }
}

/**
 * Writes all bytes, because a call may write less than it was given, for instance on a disk that
 * fills up.
 * @param position where they begin; default: behind what was written last
 */
export async function writeAll(
  file: FileHandle,
  bytes: Uint8Array,
  position?: number,
): Promise<void> {
  for (let done = 0; done < bytes.byteLength; ) {
    const place = position === undefined ? null : position + done;
    const { bytesWritten } = await file.write(bytes, done, bytes.byteLength - done, place);
    done += bytesWritten;
  }
}
