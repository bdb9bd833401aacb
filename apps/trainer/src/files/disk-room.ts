// The room on the disk that a path is on, and what is said where it has run out.

import { existsSync, readdirSync, statfsSync, statSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { DiskFullError, TrainerError } from '../errors.js';
import { describeSystemError } from '../system-error.js';

/** The codes of a disk without room, and of a user whose share of it is used up. */
const FULL: ReadonlySet<unknown> = new Set(['ENOSPC', 'EDQUOT']);

/**
 * The bytes that are free where `path` is, or will be once it is made; Infinity where its file
 * system has no number of blocks, as /proc and some that reach over a network.
 */
export function freeBytes(path: string): number {
  const { blocks, bavail, bsize } = statfsSync(existingAbove(path));
  return blocks === 0 ? Infinity : bavail * bsize;
}

/** The bytes that files of these lengths take, each of which ends in a block of its own. */
export function bytesOnDisk(path: string, lengths: readonly number[]): number {
  const { bsize } = statfsSync(existingAbove(path));
  return lengths.reduce((sum, length) => sum + Math.ceil(length / bsize) * bsize, 0);
}

/** The bytes of all files of these names in and below a directory, which may be missing. */
export function bytesBelow(directory: string, names = /./): number {
  const isDirectory = existsSync(directory) && statSync(directory).isDirectory();
  const files = isDirectory ? readdirSync(directory, { recursive: true, withFileTypes: true }) : [];
  return files
    .filter((file) => file.isFile() && names.test(file.name))
    .map(({ parentPath, name }) => statSync(join(parentPath, name)).size)
    .reduce((sum, size) => sum + size, 0);
}

/** Whether something could not be written because there is no room for it. */
export function isDiskFull(error: unknown): boolean {
  return error instanceof DiskFullError || FULL.has((error as NodeJS.ErrnoException).code);
}

/**
 * The error of a disk without room as one that names the path and the bytes, because the system's
 * own names neither; any other error as it is, with the path where the system has named none.
 */
export function namingDisk(error: unknown, path: string, neededBytes?: number): unknown {
  if (!isDiskFull(error)) {
    const system = error as NodeJS.ErrnoException;
    return system.syscall !== undefined && system.path === undefined
      ? Object.assign(system, { path })
      : error;
  }
  const cause = error instanceof DiskFullError ? error.cause : error;
  return new DiskFullError({ path, neededBytes, freeBytes: freeBytes(path) }, { cause });
}

/**
 * The sentence for a path that could not be written.
 * @throws what `error` is, where it is a mistake of this program
 */
export function whyNotWritten(error: unknown, path: string): string {
  const named = error instanceof TrainerError ? error : namingDisk(error, path);
  if (named instanceof TrainerError) {
    return named.message;
  }
  if ((error as NodeJS.ErrnoException).syscall === undefined) {
    throw error;
  }
  return `${path} can't be written (${describeSystemError(error)}).`;
}

function existingAbove(path: string): string {
  const whole = resolve(path);
  return existsSync(whole) || whole === dirname(whole) ? whole : existingAbove(dirname(whole));
}
