// The bytes of a data file, or of the novel, as they come: read once and in order, hashed on the
// way, and never all in memory. Those of a compressed file come unpacked.

import { createHash } from 'node:crypto';
import { type FileHandle, open, stat } from 'node:fs/promises';
import { UsageError } from '../errors.js';
import { describeSystemError } from '../system-error.js';
import { readNovel } from './novel.js';
import { HEAD_BYTES, otherFormat } from './other-formats.js';
import { type Packing, packingOf, unpackedBytes } from './unpacked-bytes.js';

/**
 * What the system says of a file without reading it. Any change of a file's bytes changes its
 * `ctime`, which no program can set back, whatever it does to the `mtime`.
 */
export interface FileStamp {
  readonly path: string;
  readonly device: string;
  readonly inode: string;
  readonly bytes: number;
  /** Times in ns since the epoch, as text, since they are beyond the integers of a number. */
  readonly mtime: string;
  readonly ctime: string;
}

/** The stamps of all files of some data. */
export type DataStamp = readonly FileStamp[];

/** The most bytes that are read at once; a gigabyte is then a thousand reads. */
const READ_BYTES = 2 ** 20;

/** @param flag the flag that named the file; undefined as file stands for the novel */
export class DataBytes implements AsyncDisposable {
  readonly flag: string;
  readonly file: string | undefined;
  /** The number of bytes on the disk, as the system tells it before the first is read. */
  readonly total: number;
  /** How the file is compressed; undefined where it is not. */
  readonly packing: Packing | undefined;
  readonly #handle: FileHandle | undefined;
  readonly #novel: Buffer | undefined;
  readonly #hash = createHash('sha256');
  #bytesRead = 0;

  private constructor(
    { flag, file }: Pick<DataBytes, 'flag' | 'file'>,
    held: {
      readonly handle?: FileHandle;
      readonly novel?: Buffer;
      readonly total: number;
      readonly packing?: Packing | undefined;
    },
  ) {
    this.flag = flag;
    this.file = file;
    this.total = held.total;
    this.packing = held.packing;
    this.#handle = held.handle;
    this.#novel = held.novel;
  }

  /**
   * @param seen the bytes that the file had when it was looked at before; default: those it has
   * @throws {UsageError} where the file can't be read
   */
  static async open(file: string | undefined, flag: string, seen?: number): Promise<DataBytes> {
    if (file === undefined) {
      const novel = Buffer.from(await readNovel());
      return new DataBytes({ flag, file }, { novel, total: novel.length });
    }
    let handle: FileHandle | undefined;
    try {
      // A named pipe would be opened when a writer comes, and a process that waits does not end.
      const kind = await stat(file);
      if (!kind.isFile() && !kind.isDirectory()) {
        throw new UsageError(
          `${flag}: expected a file, got ${file}, which is a pipe or a device. Write what it gives to a file first.`,
        );
      }
      handle = await open(file);
      const { size } = await handle.stat();
      const head = Buffer.alloc(HEAD_BYTES);
      const { bytesRead } = await handle.read(head, 0, HEAD_BYTES, 0);
      const begin = head.subarray(0, bytesRead);
      refuseOther(begin, { flag, file });
      const packing = packingOf(begin);
      return new DataBytes({ flag, file }, { handle, total: seen ?? size, packing });
    } catch (error) {
      await handle?.close();
      throw explainUnreadable(error, file, flag);
    }
  }

  /**
   * The bytes that were there when the file was opened, once; what is appended meanwhile is left.
   * Those of a compressed file are unpacked.
   * @throws {UsageError} where they can't be read, or the file has become shorter
   */
  async *chunks(): AsyncGenerator<Buffer> {
    const { packing, flag } = this;
    if (packing === undefined) {
      yield* this.#ownChunks();
      return;
    }
    const file = this.file!;
    let isFirst = true;
    for await (const chunk of unpackedBytes(this.#ownChunks(), { packing, file, flag })) {
      if (isFirst) {
        refuseOther(chunk.subarray(0, HEAD_BYTES), { flag, file });
      }
      isFirst = false;
      yield chunk;
    }
  }

  async *#ownChunks(): AsyncGenerator<Buffer> {
    if (this.#novel !== undefined) {
      this.#hash.update(this.#novel);
      yield this.#novel;
      return;
    }
    // The system tells no size of what it makes as it is read, such as a file in /proc.
    const end = this.total || Number.POSITIVE_INFINITY;
    while (this.#bytesRead < end) {
      const buffer = Buffer.allocUnsafeSlow(Math.min(READ_BYTES, end - this.#bytesRead));
      const { bytesRead } = await this.#handle!.read(buffer, 0, buffer.length, null).catch(
        (error: unknown) => {
          throw explainUnreadable(error, this.file!, this.flag);
        },
      );
      if (bytesRead === 0) {
        if (this.total > 0) {
          throw this.#shorter(this.#bytesRead);
        }
        return;
      }
      this.#bytesRead += bytesRead;
      const chunk = buffer.subarray(0, bytesRead);
      this.#hash.update(chunk);
      yield chunk;
    }
  }

  /**
   * Some bytes of the file wherever they are, apart from those that are hashed.
   * @throws {UsageError} where they can't be read
   */
  async bytesAt(start: number, end: number): Promise<ArrayBuffer> {
    const bytes = new Uint8Array(end - start);
    for (let done = 0; done < bytes.length; ) {
      const { bytesRead } = await this.#handle!.read(bytes, done, null, start + done).catch(
        (error: unknown) => {
          throw explainUnreadable(error, this.file!, this.flag);
        },
      );
      if (bytesRead === 0) {
        throw this.#shorter(start + done);
      }
      done += bytesRead;
    }
    return bytes.buffer;
  }

  #shorter(end: number): UsageError {
    return new UsageError(
      `${this.flag}: ${this.file} became shorter while it was read: it had ${this.total} bytes, and ends after ${end}. Start again when nothing writes to it.`,
    );
  }

  /**
   * How far the file has been read where `endByte` bytes of its content are done: as many or, of a
   * compressed one, those that have been unpacked.
   */
  placeOf(endByte: number): number {
    return this.packing === undefined ? endByte : this.#bytesRead;
  }

  /**
   * The SHA-256 of the file's bytes that have been read by chunks, which gives nothing more after
   * it.
   */
  digest(): string {
    return this.#hash.digest('hex');
  }

  /** Undefined for the novel. */
  async stamp(): Promise<FileStamp | undefined> {
    const stat = await this.#handle?.stat({ bigint: true });
    return (
      stat && {
        path: this.file!,
        device: String(stat.dev),
        inode: String(stat.ino),
        bytes: Number(stat.size),
        mtime: String(stat.mtimeNs),
        ctime: String(stat.ctimeNs),
      }
    );
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#handle?.close();
  }
}

/** @throws {UsageError} for the beginning of a file that is no text */
function refuseOther(
  head: Uint8Array,
  { flag, file }: { readonly flag: string; readonly file: string },
): void {
  const other = otherFormat(head, file);
  if (other !== undefined) {
    throw new UsageError(
      `${flag}: ${file} ${other.is}. ${other.remedy}, and give the file that comes of it.`,
    );
  }
}

/** A failure of the system or of the encoding as the user's mistake; any other error as it is. */
function explainUnreadable(error: unknown, file: string, flag: string): unknown {
  const { code, syscall } = error as NodeJS.ErrnoException;
  if (syscall === undefined) {
    return error;
  }
  const reason =
    code === 'ENOENT' ? 'is not there' : `can't be read (${describeSystemError(error)})`;
  return unreadable({ file, flag }, reason, error);
}

/** An error about a data file, with what to do. */
export function unreadable(
  { file, flag }: { readonly file: string; readonly flag: string },
  reason: string,
  cause?: unknown,
): UsageError {
  return new UsageError(
    `${flag}: ${file} ${reason}. Give a text file in UTF-8, or hf:org/name for a data set of the Hub.`,
    { cause },
  );
}
