// Writes whole pages of memory past the system's page cache, on Linux. The disk takes them from
// where they are; the cache would copy them, and on a virtual machine touch memory that its host
// has yet to find: 1.4 GiB took 0.8 to 4 s of a processor through the cache and 0.1 s past it.

import { constants } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import type { OpenFile } from './file-layer.js';

/** What file systems ask of places in files and in memory, and of lengths, to go past the cache. */
const PAGE_BYTES = 4096;

/** The shortest write for which going past the cache pays: it waits for the disk. */
const LEAST_BYTES = 256 * 1024;

/**
 * The errors of writes from memory that does not begin at a page, which nothing but the error
 * tells, and of file systems whose pages are larger.
 */
const NOT_PAST_CACHE = new Set(['EINVAL', 'ENOTSUP', 'EOPNOTSUPP']);

/**
 * `file`, which lies at `path`, with its long writes of whole pages made past the page cache until
 * the first one that can't be. All others go through it, and both see each other's bytes.
 */
export function withPageWrites(path: string, file: OpenFile): OpenFile {
  let opening: Promise<FileHandle | undefined> | undefined;
  const giveUp = async (): Promise<undefined> => {
    const handle = await opening;
    opening = Promise.resolve(undefined);
    await handle?.close();
  };
  return {
    ...file,
    write: async (bytes, position) => {
      if (isWholePages(bytes, position)) {
        opening ??= openPastCache(path);
        const written = await (await opening)
          ?.write(bytes, 0, bytes.byteLength, position)
          .catch((error: unknown) => (isNotPastCache(error) ? giveUp() : Promise.reject(error)));
        if (written !== undefined) {
          return written.bytesWritten;
        }
      }
      return file.write(bytes, position);
    },
    close: async () => {
      try {
        await giveUp();
      } finally {
        await file.close();
      }
    },
  };
}

/**
 * A second handle of a file; undefined where it can't be had, as where the system or the file
 * system has only its cache. macOS and Windows have no such flag.
 */
async function openPastCache(path: string): Promise<FileHandle | undefined> {
  return constants.O_DIRECT === undefined
    ? undefined
    : open(path, constants.O_WRONLY | constants.O_DIRECT).catch(() => undefined);
}

function isWholePages(bytes: Uint8Array, position: number): boolean {
  return (
    bytes.byteLength >= LEAST_BYTES &&
    [position, bytes.byteLength, bytes.byteOffset].every((number) => number % PAGE_BYTES === 0)
  );
}

function isNotPastCache(error: unknown): boolean {
  return NOT_PAST_CACHE.has((error as NodeJS.ErrnoException).code ?? '');
}
