// The texts that are embedded, one after the other as they are read: lines of standard input or of
// a file, or a field of lines of JSON and of rows of tables.

import { addAbortSignal, type Readable } from 'node:stream';
import { lines } from '../data/data-file.js';
import { DataSource, skippedNote } from '../data/data-source.js';
import { parseLine } from '../data/document.js';
import { hasNone } from '../data/each-entry.js';
import { fieldIn } from '../data/example-shapes.js';
import { notWords } from '../data/line-shapes.js';
import { UsageError } from '../errors.js';
import { describeSystemError } from '../system-error.js';
import { DEFAULT_FIELD, type EmbedFlags } from './embed-flags.js';

/** A text to embed. */
export interface TextLine {
  readonly text: string;
  /** The line's fields, the text among them; none where the line is the text. */
  readonly fields: Readonly<Record<string, unknown>>;
  /** Where it is for people, such as `--data: my.txt, line 3`. */
  readonly place: () => string;
  /** The byte after its end among all that are read. */
  readonly endByte: number;
}

export interface TextSource {
  /** The data's name for people. */
  readonly name: string;
  /** The bytes of all texts; undefined where nobody knows before they have been read. */
  readonly total: number | undefined;
  /** A sentence about files that hold none of them. */
  readonly note?: string | undefined;
  /** Throws a UsageError where a line has no text, or can't be read, and where there is none. */
  lines(): AsyncGenerator<TextLine>;
}

/** What a line holds. */
type Reading = Pick<TextLine, 'text' | 'fields'>;
/** Reads a line, whose field may have several texts. */
type Reader = (line: string) => readonly Reading[];

const STANDARD_INPUT = 'standard input';
/** The beginning of a line of JSON. */
const OBJECT = /^\ufeff?\s*\{\s*["}]/;

/**
 * The texts of --data.
 * @throws {UsageError} where a file can't be read, or has no such fields
 */
export async function fileTexts({
  data,
  field,
}: Pick<EmbedFlags, 'data' | 'field'>): Promise<TextSource> {
  const source = await DataSource.open(data, '--data', { isOfExamples: true });
  const { total } = source;
  const name = data!;
  if (source.formats[0] !== 'text') {
    const note = skippedNote('--data', source.skipped);
    return { name, total, note, lines: () => fieldLines(source, field ?? DEFAULT_FIELD) };
  }
  if (field !== undefined) {
    throw new UsageError(
      `--field ${field}: ${name} is a text, whose lines have no fields. Leave --field out, or give JSON lines, CSV, TSV or Parquet.`,
    );
  }
  return { name, total, lines: () => plainLines(source) };
}

/** The texts of standard input, which are lines of JSON where the first one is. */
export function inputTexts(
  input: NodeJS.ReadableStream,
  { field, signal }: Pick<EmbedFlags, 'field'> & { readonly signal: AbortSignal },
): TextSource {
  const place = (number: number) => `${STANDARD_INPUT}, line ${number}`;
  let read = field === undefined ? undefined : fieldReader(field);
  const reader: Reader = (line) => {
    read ??= OBJECT.test(line) ? fieldReader(DEFAULT_FIELD) : plainText;
    return read(line);
  };
  return {
    name: STANDARD_INPUT,
    total: undefined,
    lines: async function* () {
      let isEmpty = true;
      for await (const line of textLines(chunksOf(input, signal), { place, read: reader })) {
        isEmpty = false;
        yield line;
      }
      if (isEmpty) {
        throw new UsageError(
          `${STANDARD_INPUT} has no texts in it. Write one a line, or give --data FILE.`,
        );
      }
    },
  };
}

/** The lines of text files. */
async function* plainLines(source: DataSource): AsyncGenerator<TextLine> {
  let bytes = 0;
  let isEmpty = true;
  for await (const { data } of source.opened()) {
    const place = (number: number) => `${source.flag}: ${data.file}, line ${number}`;
    for await (const line of textLines(data.chunks(), { place, read: plainText })) {
      isEmpty = false;
      const endByte = bytes + data.placeOf(line.endByte);
      yield { ...line, endByte };
    }
    bytes += data.total;
  }
  if (isEmpty) {
    throw hasNone(source, 'texts');
  }
}

/** Lines of JSON and rows of tables, of which one field is the text. */
async function* fieldLines(source: DataSource, field: string): AsyncGenerator<TextLine> {
  const read = fieldReader(field);
  let isEmpty = true;
  for await (const entry of source.entries()) {
    isEmpty = false;
    const place = () => `${source.flag}: ${entry.place}`;
    for (const reading of placed(place, () => read(entry.text))) {
      yield { ...reading, place, endByte: entry.endByte };
    }
  }
  if (isEmpty) {
    throw hasNone(source, 'texts');
  }
}

/**
 * Each line's text. An empty line is refused, as its vector would be that of no text, and leaving
 * it out would move all vectors behind it to other lines.
 */
async function* textLines(
  chunks: AsyncIterable<Buffer>,
  { place, read }: { readonly place: (number: number) => string; readonly read: Reader },
): AsyncGenerator<TextLine> {
  const decoder = new TextDecoder('utf-8', { fatal: true });
  let blank: number | undefined;
  for await (const { bytes, number, endByte } of lines(chunks)) {
    if (blank !== undefined) {
      throw new UsageError(
        `${place(blank)}: expected a text, got an empty line. Leave it out; a text with line breaks in it is a line of JSON, {"${DEFAULT_FIELD}"}.`,
      );
    }
    if (bytes.length === 0) {
      blank = number; // what stands behind the last line break is no line
      continue;
    }
    const own = () => place(number);
    for (const reading of placed(own, () => read(decoded(decoder, bytes)))) {
      yield { ...reading, place: own, endByte };
    }
  }
}

function decoded(decoder: TextDecoder, bytes: Buffer): string {
  try {
    return decoder.decode(bytes);
  } catch (cause) {
    throw new UsageError('expected text in UTF-8, got other bytes. Save the file as UTF-8.', {
      cause,
    });
  }
}

/** Reads something, and gives what is wrong with it its place. */
function placed<T>(place: () => string, read: () => T): T {
  try {
    return read();
  } catch (cause) {
    throw cause instanceof UsageError
      ? new UsageError(`${place()}: ${cause.message}`, { cause })
      : cause;
  }
}

function plainText(line: string): [Reading] {
  const text = line.replace(/\r$/, '');
  if (text.trim() === '') {
    throw new UsageError('expected a text, got an empty line. Leave it out.');
  }
  return [{ text, fields: {} }];
}

/** Makes a text of each in a list, with the other fields of the line. */
function fieldReader(field: string): Reader {
  return (line) => {
    const fields = parseLine(line);
    const name = fieldIn(fields, field);
    if (name === undefined) {
      const [first, ...more] = Object.keys(fields);
      const has = [first, ...more].map((key) => JSON.stringify(key)).join(', ');
      throw new UsageError(
        `expected words in "${field}", got no such field${first === undefined ? '' : `, but ${has}. Name one of them, such as --field ${first}`}.`,
      );
    }
    return textsIn(fields, name).map((text) => ({ text, fields: { ...fields, [name]: text } }));
  };
}

function textsIn(fields: Readonly<Record<string, unknown>>, name: string): readonly string[] {
  const held = fields[name];
  const all: readonly unknown[] = Array.isArray(held) && held.length > 0 ? held : [held];
  const wrong = all.find((text) => typeof text !== 'string' || text.trim() === '');
  if (wrong !== undefined || held === null) {
    throw notWords(name, wrong ?? held);
  }
  return all as string[];
}

/** The bytes of a stream; a wish to end does not wait for more of them. */
async function* chunksOf(
  input: NodeJS.ReadableStream,
  signal: AbortSignal,
): AsyncGenerator<Buffer> {
  try {
    for await (const chunk of addAbortSignal(signal, input as Readable)) {
      yield Buffer.from(chunk as Uint8Array);
    }
  } catch (cause) {
    signal.throwIfAborted();
    if ((cause as NodeJS.ErrnoException).syscall === undefined) {
      throw cause;
    }
    throw new UsageError(
      `${STANDARD_INPUT} can't be read (${describeSystemError(cause)}). Give a file, or --data FILE.`,
      { cause },
    );
  }
}
