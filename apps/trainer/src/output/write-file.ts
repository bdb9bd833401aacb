// Writes files and directories that are there whole or not at all: under a name that only this
// command uses, because two may write the same at once, and renamed when they are on the disk.

import { randomBytes } from 'node:crypto';
import { open, rename, rm, rmdir } from 'node:fs/promises';
import { makeDirectory } from './make-directory.js';

export interface WriteOptions {
  /** Ends the writing between two pieces, with its reason; nothing is left of them. */
  readonly signal?: AbortSignal | undefined;
}

/** Writes `pieces` one after another. An earlier file of that name stays until all are written. */
export async function writePieces(
  path: string,
  pieces: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
  { signal }: WriteOptions = {},
): Promise<void> {
  const part = partOf(path);
  try {
    const file = await open(part, 'w');
    try {
      for await (const piece of pieces) {
        signal?.throwIfAborted();
        await writeAll(file, piece);
      }
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(part, path);
  } catch (error) {
    await rm(part, { force: true });
    throw error;
  }
}

/**
 * Lets `fill` write the files of a new or empty directory.
 * @throws what the system reports where something has come to lie there meanwhile
 */
export async function writeDirectory(
  path: string,
  fill: (part: string) => Promise<void>,
): Promise<void> {
  const part = partOf(path);
  try {
    makeDirectory(part);
    await fill(part);
    await rmdir(path).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== 'ENOENT') {
        throw error;
      }
    });
    await rename(part, path);
  } catch (error) {
    await rm(part, { recursive: true, force: true });
    throw error;
  }
}

function partOf(path: string): string {
  return `${path}.${randomBytes(6).toString('hex')}.part`;
}

/**
 * Writes all bytes, because a call may write less than it was given, for instance on a disk that
 * fills up.
 */
async function writeAll(file: Awaited<ReturnType<typeof open>>, bytes: Uint8Array): Promise<void> {
  for (let done = 0; done < bytes.byteLength; ) {
    done += (await file.write(bytes, done)).bytesWritten;
  }
}
