// The rows of a table in CSV or TSV as JSON, by the names of its header. A row is parsed as the
// file is read, so that memory holds a piece of the file and one row, whatever its size.

import type { InfoRecord, Parser, parse } from 'csv-parse';
import { UsageError } from '../errors.js';
import { DataBytes } from './data-bytes.js';
import { type CsvFormat, type Entry, placeIn } from './data-file.js';
import { NotUtf8Error, utf8Chunks } from './utf8-chunks.js';

/** A row as it stands in the file, the header too. */
interface Row {
  /** None for an empty line. */
  readonly fields: readonly string[];
  /** The line on which it begins, from 1. */
  readonly line: number;
  /** The byte after its end, without a byte order mark and a line about the separator. */
  readonly endByte: number;
}

/** What may separate fields; of those that a header has as often, the first one does. */
const SEPARATORS = [',', ';', '\t'];
/** The line by which spreadsheets tell each other the separator. */
const TOLD_SEPARATOR = /^"?sep=([^"\r\n])"?\r?\n/iu;
/** The bytes in which a header is looked for. */
const HEADER_BYTES = 2 ** 16;
/** The longest row: behind a quote that never ends, all of a large file would be one. */
const MOST_ROW_BYTES = 2 ** 26;

const QUOTING = 'Put the field into quotes, and double each quote in it';
/** What the parser refuses, by its codes. */
const BROKEN: Readonly<Record<string, string>> = {
  CSV_QUOTE_NOT_CLOSED: 'got a quote that never ends',
  CSV_INVALID_CLOSING_QUOTE: 'got text behind the quote that ends a field',
  INVALID_OPENING_QUOTE: 'got a quote in a field that does not begin with one',
  CSV_MAX_RECORD_SIZE: `got more than ${MOST_ROW_BYTES / 2 ** 20} MiB, as behind a quote that never ends`,
};

/**
 * The rows of a file as objects, by the lines on which they begin; each value is a text.
 * @throws {UsageError} where the header or a row is none, or bytes are no UTF-8
 */
export async function* csvEntries(data: DataBytes, format: CsvFormat): AsyncGenerator<Entry> {
  const refuse: Refuse = (line, says, cause) =>
    new UsageError(`${data.flag}: ${placeIn(data.file!, format, line)}: ${says}`, { cause });
  let names: readonly string[] | undefined;
  try {
    for await (const { fields, line, endByte } of rowsIn(data, format, refuse)) {
      if (names === undefined) {
        names = fields;
        checkNames(names, (says) => refuse(line, says));
        continue;
      }
      if (fields.length === 0 && names.length > 1) {
        continue; // in one column an empty line may be an empty field
      }
      if (fields.length !== names.length) {
        const got = fields.length === 0 ? 'an empty line' : fields.length;
        throw refuse(
          line,
          `expected as many fields as the header has, ${names.length}, got ${got}. Put a field with a separator or a line break in it into quotes, or mend the row.`,
        );
      }
      const row = Object.fromEntries(names.map((name, i) => [name, fields[i]]));
      yield { text: JSON.stringify(row), number: line, endByte };
    }
  } catch (cause) {
    if (cause instanceof NotUtf8Error) {
      throw refuse(
        await lineAt(data, cause.offset),
        'expected text in UTF-8, got other bytes. Save the file as UTF-8, which spreadsheets offer as "CSV UTF-8".',
        cause,
      );
    }
    throw cause;
  }
}

/** Makes an error about what begins on a line. */
type Refuse = (line: number, says: string, cause?: unknown) => UsageError;

function checkNames(names: readonly string[], refuse: (says: string) => UsageError): void {
  const nameless = names.length === 0 ? 0 : names.indexOf('');
  if (nameless >= 0) {
    throw refuse(
      `expected a header with a name for each column, got none for column ${nameless + 1}. Name it, or remove the column.`,
    );
  }
  const twice = names.find((name, i) => names.indexOf(name) < i);
  if (twice !== undefined) {
    throw refuse(
      `expected a header of different names, got ${JSON.stringify(twice)} twice. Rename one of these columns, or remove it.`,
    );
  }
}

async function* rowsIn(data: DataBytes, format: CsvFormat, refuse: Refuse): AsyncGenerator<Row> {
  const { parse } = await import('csv-parse');
  let parser: RowParser | undefined;
  for await (const chunk of utf8Chunks(data.chunks())) {
    const head = parser === undefined ? separatorIn(chunk, format) : undefined;
    parser ??= new RowParser(parse, head!, refuse);
    yield* parser.push(chunk.subarray(head?.skipped));
  }
  yield* parser?.push() ?? [];
}

interface Head {
  readonly separator: string;
  /** The bytes of a line that tells it. */
  readonly skipped: number;
}

function separatorIn(chunk: Buffer, format: CsvFormat): Head {
  const text = chunk.toString('utf8', 0, HEADER_BYTES);
  const told = TOLD_SEPARATOR.exec(text);
  if (told !== null) {
    return { separator: told[1]!, skipped: Buffer.byteLength(told[0]) };
  }
  const [header] = /^(?:[^"\n]+|"[^"]*")*/.exec(text)!;
  const bare = header.replaceAll(/"[^"]*"/g, '');
  const numOf = (separator: string) => bare.split(separator).length;
  const most = SEPARATORS.reduce((best, own) => (numOf(own) > numOf(best) ? own : best));
  return { separator: format === 'tsv' ? '\t' : most, skipped: 0 };
}

/** Makes rows of bytes as they come. */
class RowParser {
  readonly #parser: Parser;
  readonly #refuse: Refuse;
  #rows: Row[] = [];
  #line: number;
  #emptyLines = 0;

  constructor(open: typeof parse, { separator, skipped }: Head, refuse: Refuse) {
    this.#refuse = refuse;
    this.#line = skipped > 0 ? 2 : 1;
    this.#parser = open({
      delimiter: separator,
      record_delimiter: ['\r\n', '\n'],
      relax_column_count: true,
      skip_empty_lines: true,
      max_record_size: MOST_ROW_BYTES,
      on_record: (fields: string[], info) => this.#add(fields, info),
    });
    // Each failure is told to whoever passed the bytes.
    this.#parser.on('error', () => {});
  }

  /**
   * The rows that end in these bytes; without bytes the last one.
   * @throws {UsageError} behind them, where a row can't be read
   */
  async *push(chunk?: Buffer): AsyncGenerator<Row> {
    const failure = await new Promise<Error | null | undefined>((resolve) => {
      if (chunk === undefined) {
        this.#parser.end(resolve);
      } else {
        this.#parser.write(chunk, resolve);
      }
    });
    if (failure) {
      this.#addEmptyLines(this.#parser.info.empty_lines, 0);
    }
    yield* this.#rows;
    this.#rows = [];
    if (failure) {
      const { code = '' } = failure as NodeJS.ErrnoException;
      const got = BROKEN[code] ?? failure.message;
      throw this.#refuse(this.#line, `expected a row, ${got}. ${QUOTING}.`, failure);
    }
  }

  /** Keeps a row here rather than in the parser's stream, whose rows an error would take away. */
  #add(fields: readonly string[], { bytes, empty_lines }: InfoRecord): undefined {
    this.#addEmptyLines(empty_lines, bytes);
    this.#rows.push({ fields, line: this.#line, endByte: bytes });
    // The parser's own count takes a CRLF in quotes for two lines.
    this.#line += 1 + fields.reduce((sum, field) => sum + breaksIn(field), 0);
  }

  /** Empty lines are rows of no fields, except those in the end, behind which no row comes. */
  #addEmptyLines(numAll: number, endByte: number): void {
    for (; this.#emptyLines < numAll; this.#emptyLines++) {
      this.#rows.push({ fields: [], line: this.#line++, endByte });
    }
  }
}

function breaksIn(text: string | Buffer): number {
  let count = 0;
  for (let at = text.indexOf('\n'); at >= 0; at = text.indexOf('\n', at + 1)) {
    count++;
  }
  return count;
}

/** The line of a byte of the content, for which that is read again. */
async function lineAt({ file, flag }: DataBytes, offset: number): Promise<number> {
  await using data = await DataBytes.open(file, flag);
  let [line, left] = [1, offset];
  for await (const chunk of data.chunks()) {
    line += breaksIn(chunk.subarray(0, left));
    left -= Math.min(left, chunk.length);
    if (left === 0) {
      break;
    }
  }
  return line;
}
