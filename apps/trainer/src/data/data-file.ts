// What a data file holds, told by its content, and the documents in it: JSON a line, or JSON values
// that a program has laid out, as an array or one after another; or the rows of a table.

import { closeSync, openSync, readSync, statSync } from 'node:fs';
import { UsageError } from '../errors.js';
import type { DataBytes } from './data-bytes.js';
import { packingOf, unpackedHead, unpackedName } from './unpacked-bytes.js';

/** The separator of TSV is a tab; that of CSV is told by the header. */
export type CsvFormat = 'csv' | 'tsv';

/**
 * A text; a document a line; objects of JSON wherever they begin, in an array or not, which are
 * counted as entries; or a table in Parquet, CSV or TSV with a document a row.
 */
export type DataFormat = 'text' | 'lines' | 'entries' | 'table' | CsvFormat;

export interface Entry {
  /** The JSON text of a document. */
  readonly text: string;
  /** The number of its first line or, without lines, its own among entries or rows; from 1. */
  readonly number: number;
  /** The byte after its end in the file. */
  readonly endByte: number;
}

/** Those fields of a table that are read where it has these; undefined where all may be. */
export type NeededFields = (names: readonly string[]) => readonly string[] | undefined;

const LINE_FEED = 10;
const SNIFF_BYTES = 2 ** 16;
/** The beginning of a table: PAR1, and the first byte of the header of a page. */
const TABLE = Buffer.of(0x50, 0x41, 0x52, 0x31, 0x15);
/** The beginning of a file of objects. */
const OBJECTS = /^\ufeff?\s*(\[\s*)?\{\s*["}]/;

/** Formats by the names of files. */
const NAMED: readonly (readonly [name: RegExp, format: DataFormat])[] = [
  [/\.(jsonl|ndjson|json)$/i, 'lines'],
  [/\.parquet$/i, 'table'],
  [/\.csv$/i, 'csv'],
  [/\.tsv$/i, 'tsv'],
];

/**
 * Tells the format by the first object. A file that begins otherwise is a text, unless its name
 * says that it is JSON or a table; so is one that can't be read, which is an error later.
 */
export function fileFormat(file: string | undefined): DataFormat {
  if (file === undefined) {
    return 'text';
  }
  const [, named = 'text'] = NAMED.find(([name]) => name.test(unpackedName(file))) ?? [];
  try {
    // What is read of a pipe is gone, and one that nobody writes to would be waited for.
    return (statSync(file).isFile() ? sniff(file) : undefined) ?? named;
  } catch {
    return named;
  }
}

/** The format of a file that begins as a table or with an object; undefined for others. */
function sniff(file: string): DataFormat | undefined {
  const handle = openSync(file, 'r');
  try {
    const own = () => {
      const bytes = Buffer.alloc(SNIFF_BYTES);
      return bytes.subarray(0, readSync(handle, bytes));
    };
    const first = own();
    const chunk = chunksFrom(first, own);
    let bytes = chunk();
    if (bytes.subarray(0, TABLE.length).equals(TABLE)) {
      return 'table';
    }
    const begin = OBJECTS.exec(bytes.toString('utf8'));
    if (begin === null) {
      return undefined;
    }
    const scanner = new ObjectScanner();
    let isOneLine = begin[1] === undefined;
    for (; bytes.length > 0; bytes = chunk()) {
      const [found] = scanner.scan(bytes);
      if (found !== undefined) {
        const text = found.bytes.toString('utf8');
        isOneLine &&= !text.includes('\n');
        return isJson(text) ? (isOneLine ? 'lines' : 'entries') : undefined;
      }
    }
    return undefined;
  } finally {
    closeSync(handle);
  }
}

/** The chunks of a file, or what they unpack to; `own` reads the next, and has read `first`. */
function chunksFrom(first: Buffer, own: () => Buffer): () => Buffer {
  const packing = packingOf(first);
  let read = first;
  let done = 0;
  return () => {
    if (packing === undefined) {
      const chunk = read;
      read = own();
      return chunk;
    }
    // The beginning is unpacked again, each time twice as much, for there is nothing that waits.
    for (let isEnd = false; !isEnd; ) {
      const all = unpackedHead(read, packing);
      if (all.length > done) {
        const chunk = all.subarray(done);
        done = all.length;
        return chunk;
      }
      const size = read.length;
      for (let more = own(); more.length > 0; more = own()) {
        read = Buffer.concat([read, more]);
        if (read.length >= 2 * size) {
          break;
        }
      }
      isEnd = read.length === size;
    }
    return Buffer.alloc(0);
  };
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/**
 * The documents of a file of any size.
 * @throws {UsageError} where the file can't be read, or where something stands between objects
 */
export async function* entriesIn(
  data: DataBytes,
  format: DataFormat,
  needed: NeededFields = () => undefined,
): AsyncGenerator<Entry> {
  if (format === 'table' && data.packing !== undefined) {
    throw new UsageError(
      `${data.flag}: ${data.file} is a compressed table (${data.packing}), and a table in Parquet is read from its end. Unpack it first, and give the file that comes of it.`,
    );
  }
  if (format === 'table') {
    const { tableEntries } = await import('./table-rows.js');
    yield* tableEntries(data, needed);
    return;
  }
  if (format === 'csv' || format === 'tsv') {
    const { csvEntries } = await import('./csv-rows.js');
    yield* csvEntries(data, format);
    return;
  }
  const { flag } = data;
  const file = data.file!;
  const decoder = new TextDecoder('utf-8', { fatal: true });
  const decoded = (bytes: Buffer, number: number) => {
    try {
      return decoder.decode(bytes);
    } catch (cause) {
      throw new UsageError(
        `${flag}: ${placeIn(file, format, number)}: expected text in UTF-8, got other bytes. Save the file as UTF-8.`,
        { cause },
      );
    }
  };
  const chunks = data.chunks();
  const found = format === 'entries' ? objects(chunks, { file, flag }) : lines(chunks);
  for await (const { bytes, number, endByte } of found) {
    const text = decoded(bytes, number);
    if (text.trim() !== '') {
      yield { text, number, endByte };
    }
  }
}

/** A place as messages name it, such as `chats.jsonl, line 3`. */
export function placeIn(file: string, format: DataFormat, number: number): string {
  const unit = format === 'entries' ? 'entry' : format === 'table' ? 'row' : 'line';
  return `${file}, ${unit} ${number}`;
}

/** What stands in a file; see Entry. */
interface Found {
  readonly bytes: Buffer;
  readonly number: number;
  readonly endByte: number;
}

/** The bytes of each line; those behind the last line break are one, too, where there are none. */
export async function* lines(chunks: AsyncIterable<Buffer>): AsyncGenerator<Found> {
  let number = 0;
  let endByte = 0;
  let open: Buffer[] = [];
  const close = (): Found => {
    const bytes = Buffer.concat(open);
    open = [];
    endByte += bytes.length + 1;
    number++;
    return { bytes, number, endByte };
  };
  for await (const chunk of chunks) {
    let start = 0;
    for (let end = chunk.indexOf(LINE_FEED); end >= 0; end = chunk.indexOf(LINE_FEED, start)) {
      open.push(chunk.subarray(start, end));
      yield close();
      start = end + 1;
    }
    open.push(chunk.subarray(start));
  }
  yield close();
}

async function* objects(
  chunks: AsyncIterable<Buffer>,
  { file, flag }: { readonly file: string; readonly flag: string },
): AsyncGenerator<Found> {
  const scanner = new ObjectScanner();
  let number = 0;
  const refuse = (got: string) =>
    new UsageError(
      `${flag}: ${placeIn(file, 'entries', number + 1)}: expected an object of JSON, got ${got}. Write objects in a list, or one a line.`,
    );
  for await (const chunk of chunks) {
    for (const { bytes, endByte } of scanner.scan(chunk)) {
      yield { bytes, number: ++number, endByte };
    }
    if (scanner.stray !== undefined) {
      throw refuse(JSON.stringify(scanner.stray));
    }
  }
  if (scanner.isOpen) {
    throw refuse('the beginning of one that does not end');
  }
}

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const OPEN = 0x7b;
const CLOSE = 0x7d;
/** What may stand between objects: brackets, commas, white space, and the bytes of a BOM. */
const BETWEEN = new Set([0x5b, 0x5d, 0x2c, 0x20, 0x09, 0x0d, 0x0a, 0xef, 0xbb, 0xbf]);

/** Finds whole objects in bytes by their braces, as they come. */
class ObjectScanner {
  #open: Buffer[] = [];
  #depth = 0;
  #isText = false;
  #isEscaped = false;
  #bytes = 0;
  /** What stood between objects and does not belong there; nothing is found behind it. */
  stray: string | undefined;

  get isOpen(): boolean {
    return this.#depth > 0;
  }

  scan(chunk: Buffer): { readonly bytes: Buffer; readonly endByte: number }[] {
    const found: { bytes: Buffer; endByte: number }[] = [];
    let start = 0;
    for (let i = 0; i < chunk.length && this.stray === undefined; i++) {
      const byte = chunk[i]!;
      if (this.#isText) {
        this.#isText = this.#isEscaped || byte !== QUOTE;
        this.#isEscaped = !this.#isEscaped && byte === BACKSLASH;
      } else if (byte === OPEN) {
        start = this.#depth === 0 ? i : start;
        this.#depth++;
      } else if (this.#depth === 0) {
        this.stray = BETWEEN.has(byte) ? undefined : chunk.toString('utf8', i, i + 20);
      } else if (byte === QUOTE) {
        this.#isText = true;
      } else if (byte === CLOSE && --this.#depth === 0) {
        const bytes = Buffer.concat([...this.#open, chunk.subarray(start, i + 1)]);
        this.#open = [];
        found.push({ bytes, endByte: this.#bytes + i + 1 });
      }
    }
    if (this.#depth > 0) {
      this.#open.push(chunk.subarray(start));
    }
    this.#bytes += chunk.length;
    return found;
  }
}
