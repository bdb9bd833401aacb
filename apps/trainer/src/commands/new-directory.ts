// What a command leaves at --out: a new or empty directory, or a file.

import { existsSync, readdirSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { UsageError } from '../errors.js';
import { makeDirectory } from '../files/make-directory.js';
import { describeSystemError } from '../system-error.js';

/** @throws {UsageError} where the --out directory `path` is not empty */
export function requireNewDirectory(path: string): void {
  if (existsSync(join(path, 'config.json'))) {
    throw new UsageError(
      `--out: ${path} already holds a model. Choose another directory, or remove that one.`,
    );
  }
  if (existsSync(path) && !isEmptyDirectory(path)) {
    throw new UsageError(`--out: ${path} is not empty. Give a new directory.`);
  }
}

/**
 * Makes the folder for --out and runs `write`, which writes all files of it, whole or not at all.
 * @throws {UsageError} where the system can't write it
 */
export async function writeOut(path: string, write: (path: string) => Promise<void>) {
  try {
    makeDirectory(dirname(path));
    await write(path);
  } catch (cause) {
    const { syscall } = cause as NodeJS.ErrnoException;
    if (syscall === undefined || syscall === 'read') {
      throw cause;
    }
    throw new UsageError(`--out: ${path} can't be written (${describeSystemError(cause)}).`, {
      cause,
    });
  }
}

function isEmptyDirectory(path: string): boolean {
  return statSync(path).isDirectory() && readdirSync(path).length === 0;
}
