// A file that is read by ranges, whatever its size, and what is said where files can't be used.

import { existsSync } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { join } from 'node:path';
import { GgufError } from '@shardweave/gguf';
import { type ByteSource, type ModelFiles, NnError, StateDictError } from '@shardweave/nn';
import { UsageError } from '../errors.js';
import { describeSystemError } from '../system-error.js';

/** The most bytes of one system call; Node refuses 2^31. */
const CALL_BYTES = 2 ** 30;

export class FileSource implements ByteSource {
  readonly byteLength: number;
  readonly #path: string;
  readonly #file: FileHandle;

  private constructor(path: string, file: FileHandle, byteLength: number) {
    this.#path = path;
    this.#file = file;
    this.byteLength = byteLength;
  }

  /** Opens a file, which is the caller's to close. */
  static async open(path: string): Promise<FileSource> {
    const file = await open(path, 'r');
    return new FileSource(path, file, (await file.stat()).size);
  }

  close(): Promise<void> {
    return this.#file.close();
  }

  /** @throws {UsageError} where the file has become shorter than it was when it was opened */
  async read(into: Uint8Array, { offset }: { readonly offset: number }): Promise<void> {
    for (let done = 0; done < into.byteLength; ) {
      const length = Math.min(into.byteLength - done, CALL_BYTES);
      const { bytesRead } = await this.#file.read(into, done, length, offset + done);
      if (bytesRead === 0) {
        throw new UsageError(
          `${this.#path} ended at byte ${offset + done} of ${this.byteLength} while it was read. Does another program write it?`,
        );
      }
      done += bytesRead;
    }
  }
}

/** Hands the files of `directory` to `use`, and closes those that it has opened when it is done. */
export async function withModelFiles<T>(
  directory: string,
  use: (files: ModelFiles) => Promise<T>,
): Promise<T> {
  const opened: FileSource[] = [];
  const open = async (name: string) => {
    const path = join(directory, name);
    if (!existsSync(path)) {
      return undefined;
    }
    const source = await FileSource.open(path);
    opened.push(source);
    return source;
  };
  try {
    return await use({ open });
  } finally {
    await Promise.all(opened.map((source) => source.close()));
  }
}

/**
 * Reads files that the user has given.
 * @throws {UsageError} where the system can't read them, or they do not hold what they should
 */
export async function explainFiles<T>(
  { what, remedy }: { readonly what: string; readonly remedy: string },
  read: () => Promise<T>,
): Promise<T> {
  try {
    return await read();
  } catch (cause) {
    const isSystem = (cause as NodeJS.ErrnoException).syscall !== undefined;
    const isUnfit = [NnError, StateDictError, GgufError].some((kind) => cause instanceof kind);
    if (!isUnfit && !isSystem) {
      throw cause;
    }
    const why = isSystem ? ` (${describeSystemError(cause)}).` : `. ${(cause as Error).message}`;
    throw new UsageError(`${what} can't be used${why} ${remedy}`, { cause });
  }
}
