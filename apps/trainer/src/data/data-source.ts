// The data that a flag names: one file, the novel, or several files that are read one after the
// other as if they were one.

import { createHash } from 'node:crypto';
import { UsageError } from '../errors.js';
import { DataBytes, type DataStamp, type FileStamp } from './data-bytes.js';
import {
  type DataFormat,
  type Entry,
  entriesIn,
  fileFormat,
  type NeededFields,
  placeIn,
} from './data-file.js';
import { type DataPart, dataParts, filesOf } from './data-parts.js';
import { isSameStamp } from './token-cache.js';

/** An entry of any of the files. */
export interface SourceEntry extends Entry {
  /** Where it is for people, such as `chats.jsonl, line 3`; computed when it is asked for. */
  readonly place: string;
}

/** A file that is read. */
export interface OpenedFile {
  readonly data: DataBytes;
  readonly format: DataFormat;
}

/** Data by what was typed, of which all parts are meant, or a part of it. */
export type DataName = string | DataPart | undefined;

/**
 * What data holds: documents where a part of it does, and else a text. A part is told by its first
 * file, for all of its files are of a kind.
 * @throws {UsageError} for parts that can't be, and where there are no files
 */
export function formatOf(name: DataName, flag = '--data'): DataFormat {
  const formats = partsOf(name, flag).map((part) => fileFormat(filesOf(part, flag)[0]));
  return formats.find((format) => format !== 'text') ?? 'text';
}

function partsOf(name: DataName, flag: string): readonly DataPart[] {
  return typeof name === 'object' ? [name] : dataParts(name, flag);
}

/** A file as it was before the first one was read. */
interface SeenFile {
  readonly file: string | undefined;
  readonly format: DataFormat;
  readonly bytes: number;
  readonly stamp: FileStamp | undefined;
}

/** @param flag the flag that named the data; undefined as name stands for the novel */
export class DataSource {
  readonly flag: string;
  readonly name: string | undefined;
  /** See examplesAmong. */
  readonly skipped: readonly string[];
  /** What each file holds. */
  readonly formats: readonly DataFormat[];
  /** The number of bytes of all files, as the system tells it before the first is read. */
  readonly total: number;
  /** Undefined for the novel. */
  readonly stampBefore: DataStamp | undefined;
  readonly #files: readonly SeenFile[];
  readonly #hashes: string[] = [];
  readonly #stamps: (FileStamp | undefined)[] = [];

  private constructor(
    { flag, name, skipped }: Pick<DataSource, 'flag' | 'name' | 'skipped'>,
    files: readonly SeenFile[],
  ) {
    this.flag = flag;
    this.name = name;
    this.skipped = skipped;
    this.formats = files.map(({ format }) => format);
    this.total = files.reduce((sum, { bytes }) => sum + bytes, 0);
    this.stampBefore = allOf(files.map(({ stamp }) => stamp));
    this.#files = files;
  }

  /**
   * The files of all parts.
   * @param options.isOfExamples whether texts beside other files are skipped; see examplesAmong
   * @throws {UsageError} where one of the files can't be read, for texts beside documents, and for
   * examples of nothing, as the novel has none
   */
  static async open(
    name: DataName,
    flag: string,
    { isOfExamples = false }: { readonly isOfExamples?: boolean } = {},
  ): Promise<DataSource> {
    if (isOfExamples && name === undefined) {
      throw new UsageError(
        `${flag} is not given, and the task needs examples. Give JSON lines, CSV, TSV or Parquet of them.`,
      );
    }
    const parts = partsOf(name, flag);
    if (parts.length > 1) {
      throw new UsageError(
        `${flag}: weights say what rows are made of, and here each text is taken once. Leave them out.`,
      );
    }
    const found = parts.flatMap((part) => filesOf(part, flag));
    const { kept, skipped } = isOfExamples
      ? examplesAmong(found, parts)
      : { kept: found, skipped: [] };
    const files: SeenFile[] = [];
    for (const file of kept) {
      await using data = await DataBytes.open(file, flag);
      const stamp = await data.stamp();
      files.push({ file, format: fileFormat(file), bytes: data.total, stamp });
    }
    const named = typeof name === 'object' ? name.name : name;
    requireOneKind(files, named, flag);
    return new DataSource({ flag, name: named, skipped }, files);
  }

  /** Each file once, in order; it must have been read before the next one is asked for. */
  async *opened(): AsyncGenerator<OpenedFile> {
    for (const { file, format, bytes, stamp } of this.#files) {
      await using data = await DataBytes.open(file, this.flag, bytes);
      yield { data, format };
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
    for await (const { data, format } of this.opened()) {
      let last = 0;
      for await (const { text, number, endByte } of entriesIn(data, format, needed)) {
        last = number;
        yield {
          text,
          number: numbers + number,
          endByte: bytes + data.placeOf(endByte),
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

/**
 * The files of examples, without the texts that lie beside them in a folder, such as a README.md; a
 * text that is named itself is kept, and refused later.
 */
function examplesAmong(
  files: readonly (string | undefined)[],
  parts: readonly DataPart[],
): { readonly kept: readonly (string | undefined)[]; readonly skipped: readonly string[] } {
  const named = new Set(parts.flatMap(({ entries }) => entries));
  const isSkipped = (file: string | undefined): file is string =>
    file !== undefined && !named.has(file) && fileFormat(file) === 'text';
  const kept = files.filter((file) => !isSkipped(file));
  return kept.length === 0
    ? { kept: files, skipped: [] }
    : { kept, skipped: files.filter(isSkipped) };
}

/** A sentence about the texts that were skipped; undefined where there were none. */
export function skippedNote(flag: string, skipped: readonly string[]): string | undefined {
  const [first, ...more] = skipped;
  const others = more.length === 0 ? '' : ` and ${more.length} more`;
  return (
    first &&
    `${flag}: ${first}${others} ${more.length === 0 ? 'is a text' : 'are texts'} beside files with fields, and skipped.`
  );
}

/** The same for data that is not open; none without data. Throws as formatOf does. */
export function skippedNotes(flag: string, name: string | undefined): readonly string[] {
  if (name === undefined) {
    return [];
  }
  const parts = partsOf(name, flag);
  const files = parts.flatMap((part) => filesOf(part, flag));
  return [skippedNote(flag, examplesAmong(files, parts).skipped) ?? []].flat();
}

/** @throws {UsageError} for texts beside documents, which would be learnt in different ways */
function requireOneKind(files: readonly SeenFile[], name: string | undefined, flag: string): void {
  const text = files.find(({ format }) => format === 'text');
  const other = files.find(({ format }) => format !== 'text');
  if (text !== undefined && other !== undefined) {
    throw new UsageError(
      `${flag}: ${name} has texts (${text.file}) and documents (${other.file}), which are learnt in different ways. Give files of one kind, by a pattern such as 'DIR/**/*.jsonl', or a mixture by weights, such as 'DIR/*.txt:0.5,DIR/*.jsonl:0.5'.`,
    );
  }
}

function allOf(stamps: readonly (FileStamp | undefined)[]): DataStamp | undefined {
  const all = stamps.flatMap((stamp) => stamp ?? []);
  return all.length === stamps.length ? all : undefined;
}
