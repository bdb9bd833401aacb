// Downloads one content by its place in the cache. What a command that was killed had got stays in
// ETAG.incomplete, and the next one goes on behind it; the content has its name once its hash is
// what it is named by.

import { createHash, type Hash } from 'node:crypto';
import { createReadStream, statSync } from 'node:fs';
import { type FileHandle, open, rename, rm } from 'node:fs/promises';
import { dirname } from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';
import { TrainerError } from '../errors.js';
import { namingDisk } from '../files/disk-room.js';
import { makeDirectory } from '../files/make-directory.js';
import { writeAll } from '../files/write-file.js';
import { type HubFile, reasonOf } from './hub-client.js';
import { HubContentError, HubUnreachableError } from './hub-errors.js';

/** The bytes of a file, from a place on. */
export type OpenFrom = (from: number) => Promise<{
  /** Where they begin: at the place that was asked for, or at 0. */
  readonly from: number;
  readonly pieces: AsyncIterable<Uint8Array>;
}>;

export interface DownloadOptions {
  readonly open: OpenFrom;
  readonly signal?: AbortSignal | undefined;
  /** Called with the bytes of the file that are there. */
  readonly onBytes?: ((done: number) => void) | undefined;
  /** The time after a connection that broke. */
  readonly pauseMs: number;
}

/** So many connections in a row may break without a byte. */
const EMPTY_TRIES = 4;
const PART = '.incomplete';

/** The bytes of a file that are there already, in its content or in a part of it. */
export function bytesThere({ byteLength }: HubFile, blob: string): number {
  const part = sizeOf(blob + PART) ?? 0;
  return sizeOf(blob) === byteLength ? byteLength : Math.min(part, byteLength);
}

/** The bytes of a content; undefined where there is none. */
export function sizeOf(blob: string): number | undefined {
  return statSync(blob, { throwIfNoEntry: false })?.size;
}

/**
 * Downloads a file into `blob`.
 * @throws {HubUnreachableError} where the connection breaks again and again
 * @throws {HubContentError} for bytes whose hash is another; they are removed
 * @throws {DiskFullError} where there is no room; what came stays
 */
export async function downloadBlob(
  file: HubFile,
  blob: string,
  options: DownloadOptions,
): Promise<void> {
  const part = blob + PART;
  makeDirectory(dirname(blob));
  try {
    const out = await open(part, 'a');
    try {
      await fill(out, { file, part, options });
      await out.sync();
    } finally {
      await out.close();
    }
    await rename(part, blob);
  } catch (error) {
    if (error instanceof HubContentError) {
      await rm(part, { force: true });
    }
    throw namingDisk(error, part, file.byteLength);
  }
}

interface Filling {
  readonly file: HubFile;
  readonly part: string;
  readonly options: DownloadOptions;
}

async function fill(out: FileHandle, { file, part, options }: Filling): Promise<void> {
  const { open: openFrom, signal, onBytes, pauseMs } = options;
  const { byteLength, etag, path } = file;
  let done = (await out.stat()).size;
  if (done > byteLength) {
    await out.truncate(0);
    done = 0;
  }
  let hash = hashOf(file);
  for await (const piece of done > 0 ? createReadStream(part) : []) {
    signal?.throwIfAborted();
    hash.update(piece as Uint8Array);
  }
  onBytes?.(done);
  for (let left = EMPTY_TRIES; done < byteLength; ) {
    const before = done;
    try {
      const { from, pieces } = await openFrom(done);
      if (from !== done) {
        await out.truncate(0);
        [done, hash] = [0, hashOf(file)];
      }
      for await (const piece of pieces) {
        signal?.throwIfAborted();
        if (done + piece.byteLength > byteLength) {
          throw new HubContentError(
            `${path}: expected ${byteLength} bytes, as the Hub lists it, and more came. They were removed; run the command again.`,
          );
        }
        await writeAll(out, piece);
        hash.update(piece);
        done += piece.byteLength;
        onBytes?.(done);
      }
    } catch (error) {
      signal?.throwIfAborted();
      if (!isBreak(error)) {
        throw done > 0 && error instanceof HubUnreachableError ? keeping(error, done) : error;
      }
      left = done > before ? EMPTY_TRIES : left - 1;
      if (left === 0) {
        throw new HubUnreachableError(
          `${path}: the connection breaks at byte ${done} of ${byteLength} (${reasonOf(error as Error)}). What came is kept: the same command goes on there.`,
          { cause: error },
        );
      }
      await wait(pauseMs, undefined, { signal });
      continue;
    }
    if (done === before) {
      left -= 1;
      if (left === 0) {
        throw new HubUnreachableError(
          `${path}: no bytes come behind byte ${done} of ${byteLength}. What came is kept: the same command goes on there.`,
        );
      }
    }
  }
  const found = hash.digest('hex');
  if (found !== etag) {
    throw new HubContentError(
      `${path}: expected bytes with the hash ${etag}, as the Hub names them, got ${found}. They were removed; run the command again.`,
    );
  }
}

function keeping(cause: HubUnreachableError, done: number): HubUnreachableError {
  return new HubUnreachableError(
    `${cause.message} The first ${done} bytes are kept: the same command goes on there.`,
    { cause },
  );
}

/** Whether a body ended early; the errors of files have the call that failed in `syscall`. */
function isBreak(error: unknown): boolean {
  const { name, syscall } = error as NodeJS.ErrnoException;
  return (
    !(error instanceof TrainerError) &&
    (name === 'AbortError' || name === 'TypeError') &&
    syscall === undefined
  );
}

/** The Hub names large files by their SHA-256, and others as git does. */
function hashOf({ etag, byteLength }: HubFile): Hash {
  return etag.length === 64
    ? createHash('sha256')
    : createHash('sha1').update(`blob ${byteLength}\0`);
}
