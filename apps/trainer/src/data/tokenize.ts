// Turns a text or a data set of documents into a token file, a piece or a document at a time.

import { statSync } from 'node:fs';
import { UsageError } from '../errors.js';
import type { TokenizerName } from '../run-config.js';
import { describeSystemError } from '../system-error.js';
import { type DataFormat, entriesOf, formatOf, placeIn } from './data-file.js';
import { COUNTED, encodeDocuments } from './document.js';
import { readText } from './text.js';
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

/**
 * @throws {UsageError} where the data can't be read, is not what it should be, or can't be written
 */
export async function tokenize(job: TokenJob, onTokenized: OnTokenized): Promise<void> {
  const tokenizer = await loadTokenizer(job.tokenizer, job.tokenizerDirectory);
  try {
    await writeTokenFile(job, (writer) => {
      const tools = { tokenizer, writer, onTokenized };
      const format = formatOf(job.file);
      return format === 'text' ? writeText(job, tools) : writeDocuments(job, tools, format);
    });
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
  format: Exclude<DataFormat, 'text'>,
): Promise<'documents'> {
  if (tokenizer.endToken === undefined) {
    throw new UsageError(
      `${flag}: ${file} holds documents, which end with an end token, but --tokenizer ${tokenizer.name} has none. Give a --model directory with its tokenizer.json and tokenizer_config.json, or a plain text.`,
    );
  }
  const total = statSync(file!).size;
  for await (const { text, number, endByte } of entriesOf(file!, { flag, format })) {
    try {
      for (const tokens of encodeDocuments(text, tokenizer)) {
        await writer.document(tokens, number);
      }
    } catch (cause) {
      if (cause instanceof UsageError) {
        const place = placeIn(file!, format, number);
        throw new UsageError(`${flag}: ${place}: ${cause.message}`, { cause });
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
