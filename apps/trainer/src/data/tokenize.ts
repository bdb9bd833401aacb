// Turns a text or a JSONL data set into a token file, a piece or a line at a time.

import { createReadStream, statSync } from 'node:fs';
import { UsageError } from '../errors.js';
import type { TokenizerName } from '../run-config.js';
import { describeSystemError } from '../system-error.js';
import { COUNTED, encodeDocuments } from './document.js';
import { explainUnreadable, readText } from './text.js';
import { type TokenWriter, writeTokenFile } from './token-file.js';
import { loadTokenizer, type Tokenizer } from './tokenizer.js';

/** What is to be tokenized, as plain data that can be posted to a thread. */
export interface TokenJob {
  /** The flag that named the file. */
  readonly flag: '--data' | '--valid';
  /** The file; undefined stands for the novel. */
  readonly file: string | undefined;
  readonly tokenizer: TokenizerName;
  /** The directory of the tokenizer `model`. */
  readonly tokenizerDirectory: string | undefined;
  /**
   * The directory in which the token file is made, under a name that no other process uses; it is
   * moved to `into` afterwards.
   */
  readonly part: string;
  readonly into: string;
}

/** Called during the work with the bytes or characters that are done, and their total. */
export type OnTokenized = (done: number, total: number) => void;

export function isJsonl(file: string | undefined): boolean {
  return file !== undefined && /\.jsonl$/i.test(file);
}

/**
 * @throws {UsageError} where the data can't be read, is not what it should be, or can't be written
 */
export async function tokenize(job: TokenJob, onTokenized: OnTokenized): Promise<void> {
  const tokenizer = await loadTokenizer(job.tokenizer, job.tokenizerDirectory);
  const write = isJsonl(job.file) ? writeDocuments : writeText;
  try {
    await writeTokenFile(job, (writer) => write(job, { tokenizer, writer, onTokenized }));
  } catch (cause) {
    const { path, syscall } = cause as NodeJS.ErrnoException;
    if (syscall !== 'mkdir' && (syscall === undefined || path?.startsWith(job.into) !== true)) {
      throw cause;
    }
    throw new UsageError(
      `--cache: ${path} can't be written (${describeSystemError(cause)}). Give a directory for tokens that can be made, or set SHARDWEAVE_CACHE to one.`,
      { cause },
    );
  }
}

interface Tools {
  readonly tokenizer: Tokenizer;
  readonly writer: TokenWriter;
  readonly onTokenized: OnTokenized;
}

async function writeText(
  { flag, file }: TokenJob,
  { tokenizer, writer, onTokenized }: Tools,
): Promise<'stream'> {
  const text = await readText(file, flag);
  let done = 0;
  for (const piece of tokenizer.pieces(text)) {
    await writer.text(tokenizer.encode(piece).map((token) => token | COUNTED));
    done += piece.length;
    onTokenized(done, text.length);
  }
  return 'stream';
}

async function writeDocuments(
  { flag, file }: TokenJob,
  { tokenizer, writer, onTokenized }: Tools,
): Promise<'documents'> {
  if (tokenizer.endToken === undefined) {
    throw new UsageError(
      `${flag}: ${file} holds documents, which end with an end token, but --tokenizer ${tokenizer.name} has none. Give a --model directory with its tokenizer.json and tokenizer_config.json, or a plain text.`,
    );
  }
  const total = statSync(file!).size;
  for await (const { line, number, endByte } of linesOf(file!, flag)) {
    try {
      for (const tokens of encodeDocuments(line, tokenizer)) {
        await writer.document(tokens, number);
      }
    } catch (cause) {
      if (cause instanceof UsageError) {
        throw new UsageError(`${flag}: ${file}, line ${number}: ${cause.message}`, { cause });
      }
      throw cause;
    }
    onTokenized(endByte, total);
  }
  if (writer.documents === 0) {
    throw new UsageError(
      `${flag}: ${file} has no documents in it. Give a file with a line for each.`,
    );
  }
  return 'documents';
}

interface Line {
  readonly line: string;
  /** The number of the line, from 1. */
  readonly number: number;
  /** The byte after its end in the file. */
  readonly endByte: number;
}

const LINE_FEED = 10;

/** The lines of a file of any size that are not empty. */
async function* linesOf(file: string, flag: string): AsyncGenerator<Line> {
  const decoder = new TextDecoder('utf-8', { fatal: true });
  let number = 0;
  let endByte = 0;
  let open: Buffer[] = [];
  const close = (): Line[] => {
    number++;
    const bytes = Buffer.concat(open);
    open = [];
    endByte += bytes.length + 1;
    try {
      const line = decoder.decode(bytes);
      return line.trim() === '' ? [] : [{ line, number, endByte }];
    } catch (cause) {
      throw new UsageError(
        `${flag}: ${file}, line ${number}: expected text in UTF-8, got other bytes. Save the file as UTF-8.`,
        { cause },
      );
    }
  };
  try {
    for await (const chunk of createReadStream(file) as AsyncIterable<Buffer>) {
      let start = 0;
      for (let end = chunk.indexOf(LINE_FEED); end >= 0; end = chunk.indexOf(LINE_FEED, start)) {
        open.push(chunk.subarray(start, end));
        yield* close();
        start = end + 1;
      }
      open.push(chunk.subarray(start));
    }
    yield* close();
  } catch (error) {
    throw explainUnreadable(error, file, flag);
  }
}
