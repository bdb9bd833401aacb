// Turns a text or a data set of documents into a token file, a piece or a document at a time.

import { UsageError } from '../errors.js';
import { makeDirectory } from '../files/make-directory.js';
import type { TokenizerName } from '../run-config.js';
import { describeSystemError } from '../system-error.js';
import { TextCutter, UncutTextError } from './cut-text.js';
import { type DataBytes, type DataStamp, unreadable } from './data-bytes.js';
import type { DataPart } from './data-parts.js';
import { DataSource } from './data-source.js';
import { encodeDocuments } from './document.js';
import { eachEntry, hasNone } from './each-entry.js';
import { neededFields } from './line-shapes.js';
import { TokenWriter } from './token-writer.js';
import { loadTokenizer, type Tokenizer } from './tokenizer.js';
import { NotUtf8Error, utf8Chunks } from './utf8-chunks.js';
import { type ExampleReading, writeExamples } from './write-examples.js';
import type { OnTokenized, WritingTools } from './writing-tools.js';

/** What is to be tokenized, as plain data that can be posted to a thread. */
export interface TokenJob {
  /** The flag that named the file. */
  readonly flag: '--data' | '--valid';
  readonly data: DataPart;
  readonly tokenizer: TokenizerName;
  /** The directory of the tokenizer `model`. */
  readonly tokenizerDirectory: string | undefined;
  /** What the data are examples of; undefined for text to learn. */
  readonly reading?: ExampleReading | undefined;
  /** The directory that is made of it; it is not whole before `tokenize` is done. */
  readonly part: string;
}

/** The data that was tokenized. */
export interface Tokenized {
  /** The SHA-256 of the bytes that were read. */
  readonly sha256: string;
  /** Undefined where a file may have changed while it was read. */
  readonly stamp: DataStamp | undefined;
}

/** The name of the novel for people. */
export const NOVEL = 'Moby Dick';

/**
 * Reads the data once.
 * @throws {UsageError} where the data can't be read, is not what it should be, or can't be written
 */
export async function tokenize(job: TokenJob, onTokenized: OnTokenized): Promise<Tokenized> {
  const { reading } = job;
  const isOfExamples = reading !== undefined;
  const data = await DataSource.open(job.data, job.flag, { isOfExamples });
  const { name = NOVEL } = data;
  onTokenized(0, data.total);
  const tokenizer = await loadTokenizer(job.tokenizer, job.tokenizerDirectory);
  const isText = data.formats[0] === 'text';
  if (isText && reading !== undefined) {
    throw new UsageError(
      `${job.flag}: ${name} is a text, but --task ${reading.task} learns from examples: JSON lines, CSV, TSV or Parquet. Give a file of these.`,
    );
  }
  try {
    makeDirectory(job.part);
    await using writer = await TokenWriter.open(job.part, {
      kind: reading !== undefined ? 'examples' : isText ? 'stream' : 'documents',
      vocabularySize: tokenizer.vocabularySize,
    });
    const tools = { tokenizer, writer, onTokenized };
    const examples = reading && (await writeExamples(data, reading, tools));
    const targetBytes = isText ? await writeText(data, tools) : undefined;
    await (examples === undefined && !isText && writeDocuments(data, tools));
    const sha256 = data.digest();
    const origin = {
      name,
      files: data.formats.length,
      tokenizer: tokenizer.name,
      bytes: data.total,
      sha256,
    };
    await writer.end({ targetBytes, examples, origin });
    return { sha256, stamp: data.stampAfter };
  } catch (cause) {
    const { path, syscall } = cause as NodeJS.ErrnoException;
    if (cause instanceof UsageError || syscall === undefined) {
      throw cause;
    }
    throw new UsageError(
      `--cache: ${path ?? job.part} can't be written (${describeSystemError(cause)}). Give a directory for tokens that can be made and has room, or set SHARDWEAVE_CACHE to one.`,
      { cause },
    );
  }
}

/** Resolves with what TokenIndex calls targetBytes. */
async function writeText(
  source: DataSource,
  { tokenizer, writer, onTokenized }: WritingTools,
): Promise<number | undefined> {
  let bytes = 0;
  let first: number | undefined;
  const cutter = new TextCutter(tokenizer.cuts);
  const write = async (piece: string) => {
    const tokens = tokenizer.encode(piece);
    first ??= firstBytes(piece, tokens, tokenizer);
    await writer.text(tokens);
  };
  const { total } = source;
  let before = 0;
  const add = async (chunk: Buffer, place: () => number) => {
    bytes += chunk.length;
    if (tokenizer.name === 'byte') {
      first ??= chunk[0]! < 0x80 ? 1 : 0;
      await writer.bytes(chunk);
    } else {
      for (const piece of cutter.push(chunk.toString('utf8'))) {
        await write(piece);
      }
    }
    onTokenized(Math.min(place(), total), total);
  };
  for await (const { data } of source.opened()) {
    const start = bytes;
    const place = () => before + data.placeOf(bytes - start);
    try {
      for await (const chunk of utf8Chunks(data.chunks())) {
        await add(chunk, place);
      }
    } catch (error) {
      throw explainText(error, data, tokenizer);
    }
    before += data.total;
  }
  await write(cutter.end());
  onTokenized(total, total);
  return first && bytes > first ? bytes - first : undefined;
}

/**
 * The bytes that the first token of a text spells; 0 where it is special, a part of a character, or
 * written differently by the tokenizer. Undefined for no text.
 */
export function firstBytes(
  text: string,
  tokens: Uint32Array,
  tokenizer: Pick<Tokenizer, 'decode'>,
): number | undefined {
  if (text === '') {
    return undefined;
  }
  const first = tokenizer.decode(tokens.subarray(0, 1));
  return text.startsWith(first) ? Buffer.byteLength(first) : 0;
}

function explainText(error: unknown, { file, flag }: DataBytes, { name }: Tokenizer): unknown {
  if (error instanceof NotUtf8Error) {
    const place = `is not text in UTF-8: its byte ${error.offset + 1} begins no character`;
    return unreadable({ file: file!, flag }, place, error);
  }
  if (error instanceof UncutTextError) {
    const { offset, most } = error;
    return new UsageError(
      `${flag}: ${file} has ${most} characters behind its first ${offset} without a place where --tokenizer ${name} begins a new word. Put spaces or line breaks into it, give its documents as JSON lines, or choose --tokenizer byte.`,
      { cause: error },
    );
  }
  return error;
}

async function writeDocuments(
  source: DataSource,
  { tokenizer, writer, onTokenized }: WritingTools,
): Promise<void> {
  const { name, flag } = source;
  if (tokenizer.endToken === undefined) {
    throw new UsageError(
      `${flag}: ${name} holds documents, which end with an end token, but --tokenizer ${tokenizer.name} has none. Give a --model directory with its tokenizer.json and tokenizer_config.json, or a plain text.`,
    );
  }
  await eachEntry(source, { onTokenized, needed: neededFields }, async ({ text, number }) => {
    for (const tokens of encodeDocuments(text, tokenizer)) {
      await writer.document(tokens, number);
    }
  });
  if (writer.documents === 0) {
    throw hasNone(source, 'documents');
  }
}
