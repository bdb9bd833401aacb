// A data set as tokens on disk: a directory, whole or not there at all, that is read by ranges.
//
//   index.json     what it holds (TokenIndex)
//   tokens.bin     u8, u16 or u32 little-endian, one after the other
//   counted.bin    of documents: a bit a token, the lowest first, set where its loss counts
//   documents.bin  three u32 a document: its tokens, how many count as targets, its line; of
//                  examples: its tokens, what it is (ROLES), its line
//   labels.bin     of examples: two u32 a label: the example, and the label's number, a score's
//                  bits as f32, or the tokens of an answer's prompt

import { existsSync } from 'node:fs';
import { type FileHandle, open, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { TrainerError } from '../errors.js';
import { COUNTED } from './document.js';
import type { Example } from './example-shapes.js';
import type { TextFrame } from './tokenizer.js';

/** Incremented whenever equal data would be written differently; keys of the cache depend on it. */
export const TOKEN_FORMAT = 3;

export const TOKEN_FILES = {
  index: 'index.json',
  tokens: 'tokens.bin',
  marks: 'counted.bin',
  documents: 'documents.bin',
  labels: 'labels.bin',
} as const;

/** What a text is in its example; see Example. */
export const ROLES = { first: 0, second: 1, negative: 2 } as const;

/** What is known of all examples of a file. */
export interface ExampleIndex {
  readonly count: number;
  /** Preferences are pairs of answers; see write-pairs.ts. */
  readonly kind: Example['kind'] | 'preferences';
  /** The names of labels, in the order in which they were found. */
  readonly labels: readonly string[];
  /** The tokens around a text, which are not in the file. */
  readonly frame: TextFrame;
}

export interface TokenIndex {
  readonly format: typeof TOKEN_FORMAT;
  /** A text, whose tokens all count; documents; or examples of a task, each of several texts. */
  readonly kind: 'stream' | 'documents' | 'examples';
  readonly tokens: number;
  /** The bytes of a token: 1 for up to 256 words, 2 for up to 65,536, and else 4. */
  readonly tokenBytes: 1 | 2 | 4;
  readonly documents: number;
  /** The largest token. */
  readonly largest: number;
  /**
   * The bytes of a text in UTF-8 that its targets spell, which are all but those of its first
   * token. Undefined for documents, whose end tokens count and spell nothing, and where the first
   * token has no text of its own: it is special, a part of a character, or written differently by
   * the tokenizer.
   */
  readonly targetBytes?: number | undefined;
  readonly examples?: ExampleIndex | undefined;
  /** The data that the tokens were first made of. */
  readonly origin: {
    readonly name: string;
    /** The number of its files. */
    readonly files?: number;
    readonly tokenizer: string;
    readonly bytes: number;
    readonly sha256: string;
  };
}

/** The place of a document's tokens in the file. */
export interface DocumentEntry {
  readonly start: number;
  readonly length: number;
  /**
   * The number of tokens that count, without the first one, which is no target because nothing
   * comes before it.
   */
  readonly counted: number;
  /** The line in the file that it came from, counted from 1. */
  readonly line: number;
}

export type TokenArray =
  | Uint8Array<ArrayBuffer>
  | Uint16Array<ArrayBuffer>
  | Uint32Array<ArrayBuffer>;

/** The numbers of a document in documents.bin. */
export const FIELDS = 3;
/**
 * The tokens of a read. The last reads are kept, 16 MiB in all, so that a small set is read once.
 */
export const BLOCK = 2 ** 16;
const KEPT_BLOCKS = 64;

const ARRAYS = { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array };

export function tokenArray(tokenBytes: TokenIndex['tokenBytes'], length: number): TokenArray {
  return new ARRAYS[tokenBytes](length);
}

export function hasTokenFile(directory: string): boolean {
  return existsSync(join(directory, TOKEN_FILES.index));
}

export class TokenFile implements AsyncDisposable {
  readonly index: TokenIndex;
  readonly #file: FileHandle;
  /** The file of marks; a text has none. */
  readonly #marksFile: FileHandle | undefined;
  readonly #table: Uint32Array;
  readonly #starts: Float64Array;
  /** The blocks that were read last, the oldest first. */
  readonly #blocks = new Map<number, Promise<Uint32Array>>();

  private constructor(
    index: TokenIndex,
    table: Uint32Array,
    files: { readonly tokens: FileHandle; readonly marks: FileHandle | undefined },
  ) {
    this.index = index;
    this.#file = files.tokens;
    this.#marksFile = files.marks;
    this.#table = table;
    this.#starts = new Float64Array(index.documents);
    for (let i = 1; i < index.documents; i++) {
      this.#starts[i] = this.#starts[i - 1]! + table[(i - 1) * FIELDS]!;
    }
  }

  /** @throws {TrainerError} where the files do not fit each other */
  static async open(directory: string): Promise<TokenFile> {
    const at = (name: string) => join(directory, name);
    const index = JSON.parse(await readFile(at(TOKEN_FILES.index), 'utf8')) as TokenIndex;
    const bytes = await readFile(at(TOKEN_FILES.documents));
    const tokens = await open(at(TOKEN_FILES.tokens), 'r');
    const hasMarks = index.kind === 'documents';
    const marks = hasMarks
      ? await open(at(TOKEN_FILES.marks), 'r').catch(() => undefined)
      : undefined;
    const isWhole =
      (await tokens.stat()).size === index.tokens * index.tokenBytes &&
      (!hasMarks || (await marks?.stat())?.size === Math.ceil(index.tokens / 8)) &&
      bytes.byteLength === index.documents * FIELDS * 4;
    if (!isWhole) {
      await tokens.close();
      await marks?.close();
      throw new TrainerError(
        `${directory} holds tokens that were cut off or changed. Remove that directory; it is made anew.`,
      );
    }
    const table = new Uint32Array(index.documents * FIELDS);
    new Uint8Array(table.buffer).set(bytes);
    return new TokenFile(index, table, { tokens, marks });
  }

  document(i: number): DocumentEntry {
    const [length, counted, line] = this.#table.subarray(i * FIELDS, (i + 1) * FIELDS);
    return { start: this.#starts[i]!, length: length!, counted: counted!, line: line! };
  }

  /** The tokens from `start` on; those of documents have COUNTED where they count. */
  async read(start: number, length: number): Promise<Uint32Array> {
    const tokens = new Uint32Array(length);
    for (let done = 0; done < length; ) {
      const block = Math.floor((start + done) / BLOCK);
      const from = start + done - block * BLOCK;
      const part = (await this.#block(block)).subarray(from, from + length - done);
      tokens.set(part, done);
      done += part.length;
    }
    return tokens;
  }

  async close(): Promise<void> {
    await this.#file.close();
    await this.#marksFile?.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  #block(number: number): Promise<Uint32Array> {
    const block = this.#blocks.get(number) ?? this.#readBlock(number);
    this.#blocks.delete(number);
    this.#blocks.set(number, block);
    if (this.#blocks.size > KEPT_BLOCKS) {
      this.#blocks.delete(this.#blocks.keys().next().value!);
    }
    return block;
  }

  async #readBlock(number: number): Promise<Uint32Array> {
    const first = number * BLOCK;
    const held = tokenArray(this.index.tokenBytes, Math.min(BLOCK, this.index.tokens - first));
    await readAll(this.#file, new Uint8Array(held.buffer), first * this.index.tokenBytes);
    const tokens = new Uint32Array(held);
    if (this.#marksFile !== undefined) {
      const marks = new Uint8Array(Math.ceil(held.length / 8));
      await readAll(this.#marksFile, marks, first / 8);
      for (let i = 0; i < tokens.length; i++) {
        tokens[i]! |= ((marks[i >> 3]! >> (i & 7)) & 1) === 1 ? COUNTED : 0;
      }
    }
    return tokens;
  }
}

async function readAll(file: FileHandle, bytes: Uint8Array, from: number): Promise<void> {
  for (let done = 0; done < bytes.byteLength; ) {
    const { bytesRead } = await file.read(bytes, done, bytes.byteLength - done, from + done);
    if (bytesRead === 0) {
      throw new TrainerError('a token file ended while it was read. Was the cache emptied?');
    }
    done += bytesRead;
  }
}
