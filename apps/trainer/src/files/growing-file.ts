// Reads a file of lines that another process may be writing: first what is there, then what comes.

import { closeSync, fstatSync, openSync, readSync } from 'node:fs';

const CHUNK_BYTES = 2 ** 20;
const NEWLINE = 10;

export class GrowingFile {
  readonly path: string;
  /** Tells a file from the one that has replaced it under its name. */
  #inode = 0;
  #offset = 0;
  /** The beginning of a line whose end is not there yet. */
  #rest = Buffer.alloc(0);

  constructor(path: string) {
    this.path = path;
  }

  /**
   * The whole lines since the last call, as texts of many lines each, so that a long file is never
   * in memory at once. Each text ends with a line's end.
   * @param onNew called before the first text of a file that is not the one that was read before:
   * a run that goes on writes its files anew
   */
  *read(onNew: () => void = () => {}): Generator<string> {
    const file = openOrMissing(this.path);
    if (file === undefined) {
      return;
    }
    try {
      const { ino, size } = fstatSync(file);
      if (ino !== this.#inode || size < this.#offset) {
        if (this.#inode !== 0) {
          onNew();
        }
        this.#inode = ino;
        this.#offset = 0;
        this.#rest = Buffer.alloc(0);
      }
      while (this.#offset < size) {
        const chunk = Buffer.allocUnsafe(Math.min(CHUNK_BYTES, size - this.#offset));
        const length = readSync(file, chunk, 0, chunk.byteLength, this.#offset);
        if (length === 0) {
          return;
        }
        this.#offset += length;
        const bytes = Buffer.concat([this.#rest, chunk.subarray(0, length)]);
        const end = bytes.lastIndexOf(NEWLINE) + 1;
        this.#rest = bytes.subarray(end);
        if (end > 0) {
          yield bytes.toString('utf8', 0, end);
        }
      }
    } finally {
      closeSync(file);
    }
  }
}

/** The last whole lines of a file, at most about `maxBytes` of them; empty where it is missing. */
export function tailOf(path: string, maxBytes: number): string {
  const file = openOrMissing(path);
  if (file === undefined) {
    return '';
  }
  try {
    const { size } = fstatSync(file);
    const start = Math.max(0, size - maxBytes);
    const bytes = Buffer.alloc(size - start);
    const text = bytes.toString('utf8', 0, readSync(file, bytes, 0, bytes.byteLength, start));
    const first = start === 0 ? 0 : text.indexOf('\n') + 1;
    return text.slice(first, text.lastIndexOf('\n') + 1);
  } finally {
    closeSync(file);
  }
}

function openOrMissing(path: string): number | undefined {
  try {
    return openSync(path, 'r');
  } catch (error) {
    if (['ENOENT', 'ENOTDIR'].includes((error as NodeJS.ErrnoException).code!)) {
      return undefined;
    }
    throw error;
  }
}
