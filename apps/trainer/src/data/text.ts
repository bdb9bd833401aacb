// Where the text comes from: a file of the user's, or the novel.

import { readFile } from 'node:fs/promises';
import { UsageError } from '../errors.js';
import { describeSystemError } from '../system-error.js';
import { readNovel } from './novel.js';

/**
 * The whole text of `file` or, without one, Moby Dick in the order of its chapters.
 * @param flag the flag that named the file
 * @throws {UsageError} where the file can't be read
 */
export async function readText(file: string | undefined, flag = '--data'): Promise<string> {
  if (file === undefined) {
    return await readNovel();
  }
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(await readFile(file));
  } catch (error) {
    throw explainUnreadable(error, file, flag);
  }
}

/** A failure of the system or of the encoding as the user's mistake; any other error as it is. */
export function explainUnreadable(error: unknown, file: string, flag: string): unknown {
  const { code, syscall } = error as NodeJS.ErrnoException;
  let reason = `can't be read (${describeSystemError(error)})`;
  if (code === 'ENOENT') {
    reason = 'is not there';
  } else if (code === 'ERR_ENCODING_INVALID_ENCODED_DATA') {
    reason = 'is not text in UTF-8';
  } else if (syscall === undefined) {
    return error;
  }
  const rest = flag === '--data' ? ', or leave --data out to train on Moby Dick' : '';
  return new UsageError(`${flag}: ${file} ${reason}. Give a text file in UTF-8${rest}.`, {
    cause: error,
  });
}
