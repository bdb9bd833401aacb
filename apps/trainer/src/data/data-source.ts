// The data that a flag names: one file, the novel, or several files that are read one after the
// other as if they were one.

import { createHash } from 'node:crypto';
import { isDataName } from '../hub/data-name.js';
import { datasetFiles } from '../hub/hub-dataset.js';
import { DataBytes, type DataStamp, type FileStamp } from './data-bytes.js';
import {
  type DataFormat,
  type Entry,
  entriesIn,
  fileFormat,
  type NeededFields,
  placeIn,
} from './data-file.js';
import { isSameStamp } from './token-cache.js';

/** An entry of any of the files. */
export interface SourceEntry extends Entry {
  /** Where it is for people, such as `chats.jsonl, line 3`; computed when it is asked for. */
  readonly place: string;
}

/**
 * The files of data by its name: a path, or the name of a split on the Hub that has been
 * downloaded. Undefined is the novel.
 */
export function filesOf(name: string | undefined): readonly (string | undefined)[] {
  return isDataName(name) ? datasetFiles(name) : [name];
}

/** What data holds, told by its first file: all are a text, or all hold documents. */
export function formatOf(name: string | undefined): DataFormat {
  return fileFormat(filesOf(name)[0]);
}

/** A file as it was before the first one was read. */
interface SeenFile {
  readonly file: string | undefined;
  readonly bytes: number;
  readonly stamp: FileStamp | undefined;
}

/** @param flag the flag that named the data; undefined as name stands for the novel */
export class DataSource {
  readonly flag: string;
  readonly name: string | undefined;
  /** The number of bytes of all files, as the system tells it before the first is read. */
  readonly total: number;
  /** Undefined for the novel. */
  readonly stampBefore: DataStamp | undefined;
  readonly #files: readonly SeenFile[];
  readonly #hashes: string[] = [];
  readonly #stamps: (FileStamp | undefined)[] = [];

  private constructor(
    { flag, name }: Pick<DataSource, 'flag' | 'name'>,
    files: readonly SeenFile[],
  ) {
    this.flag = flag;
    this.name = name;
    this.total = files.reduce((sum, { bytes }) => sum + bytes, 0);
    this.stampBefore = allOf(files.map(({ stamp }) => stamp));
    this.#files = files;
  }

  /** @throws {UsageError} where one of the files can't be read */
  static async open(name: string | undefined, flag: string): Promise<DataSource> {
    const files: SeenFile[] = [];
    for (const file of filesOf(name)) {
      await using data = await DataBytes.open(file, flag);
      files.push({ file, bytes: data.total, stamp: await data.stamp() });
    }
    return new DataSource({ flag, name }, files);
  }

  /** Each file once, in order; it must have been read before the next one is asked for. */
  async *opened(): AsyncGenerator<DataBytes> {
    for (const { file, bytes, stamp } of this.#files) {
      await using data = await DataBytes.open(file, this.flag, bytes);
      yield data;
      const after = await data.stamp();
      this.#hashes.push(data.digest());
      this.#stamps.push(isSameStamp(stamp, after) ? after : undefined);
    }
  }

  /**
   * The documents of all files.
   * @throws {UsageError} where a file can't be read, or holds something else
   */
  async *entries(needed?: NeededFields): AsyncGenerator<SourceEntry> {
    let [numbers, bytes] = [0, 0];
    for await (const data of this.opened()) {
      const format = fileFormat(data.file);
      let last = 0;
      for await (const { text, number, endByte } of entriesIn(data, format, needed)) {
        last = number;
        yield {
          text,
          number: numbers + number,
          endByte: bytes + endByte,
          get place() {
            return placeIn(data.file!, format, number);
          },
        };
      }
      numbers += last;
      bytes += data.total;
    }
  }

  /** The SHA-256 of what has been read: the bytes of one file, or the hashes of several. */
  digest(): string {
    const [own = ''] = this.#hashes;
    return this.#hashes.length === 1
      ? own
      : createHash('sha256').update(this.#hashes.join('\n')).digest('hex');
  }

  /** The stamps of what has been read; undefined where a file may have changed meanwhile. */
  get stampAfter(): DataStamp | undefined {
    return allOf(this.#stamps);
  }
}

function allOf(stamps: readonly (FileStamp | undefined)[]): DataStamp | undefined {
  const all = stamps.flatMap((stamp) => stamp ?? []);
  return all.length === stamps.length ? all : undefined;
}
