// A data set as tokens on disk: a directory, whole or not there at all, that is read by ranges.
//
//   index.json     what it holds (TokenIndex)
//   tokens.bin     u32 little-endian, one after the other; COUNTED marks those whose loss counts
//   documents.bin  three u32 a document: its tokens, how many count as targets, its line

import { existsSync } from 'node:fs';
import { type FileHandle, open, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { TrainerError } from '../errors.js';
import { makeDirectory } from '../output/make-directory.js';
import { COUNTED } from './document.js';

/** Incremented whenever equal data would be written differently; keys of the cache depend on it. */
export const TOKEN_FORMAT = 2;

export interface TokenIndex {
  readonly format: typeof TOKEN_FORMAT;
  /** A text, whose tokens all count, or documents. */
  readonly kind: 'stream' | 'documents';
  readonly tokens: number;
  readonly documents: number;
  /** The largest token. */
  readonly largest: number;
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

const FIELDS = 3;
/**
 * The tokens of a read. The last reads are kept, 16 MiB in all, so that a small set is read once.
 */
const BLOCK = 2 ** 16;
const KEPT_BLOCKS = 64;

export function hasTokenFile(directory: string): boolean {
  return existsSync(join(directory, 'index.json'));
}

/** Writes tokens as they are made. */
export class TokenWriter {
  readonly #file: FileHandle;
  readonly #buffer = new Uint32Array(BLOCK);
  #filled = 0;
  #tokens = 0;
  #largest = 0;
  readonly #documents: number[] = [];

  constructor(file: FileHandle) {
    this.#file = file;
  }

  get documents(): number {
    return this.#documents.length / FIELDS;
  }

  /** Appends tokens of a text. */
  async text(tokens: Uint32Array): Promise<void> {
    for (const token of tokens) {
      if (this.#filled === BLOCK) {
        await this.flush();
      }
      this.#buffer[this.#filled++] = token;
      this.#largest = Math.max(this.#largest, (token & ~COUNTED) >>> 0);
    }
    this.#tokens += tokens.length;
  }

  /** Appends a document. */
  async document(tokens: Uint32Array, line: number): Promise<void> {
    const counted = tokens.subarray(1).reduce((sum, token) => sum + Number(token >= COUNTED), 0);
    this.#documents.push(tokens.length, counted, line);
    await this.text(tokens);
  }

  async flush(): Promise<void> {
    const bytes = new Uint8Array(this.#buffer.buffer, 0, this.#filled * 4);
    for (let done = 0; done < bytes.byteLength; ) {
      done += (await this.#file.write(bytes, done)).bytesWritten;
    }
    this.#filled = 0;
  }

  table(): Uint32Array {
    return Uint32Array.from(this.#documents);
  }

  index(kind: TokenIndex['kind']): TokenIndex {
    const { documents } = this;
    return { format: TOKEN_FORMAT, kind, tokens: this.#tokens, documents, largest: this.#largest };
  }
}

/**
 * Makes a directory of what `produce` writes. It gets its name when all of it is on the disk. Where
 * another process was first, that one's directory stays, which holds the same.
 */
export async function writeTokenFile(
  { into, part }: { readonly into: string; readonly part: string },
  produce: (writer: TokenWriter) => Promise<TokenIndex['kind']>,
): Promise<void> {
  makeDirectory(part);
  try {
    const file = await open(join(part, 'tokens.bin'), 'w');
    const writer = new TokenWriter(file);
    let kind: TokenIndex['kind'];
    try {
      kind = await produce(writer);
      await writer.flush();
      await file.sync();
    } finally {
      await file.close();
    }
    await writeFile(join(part, 'documents.bin'), writer.table());
    await writeFile(join(part, 'index.json'), `${JSON.stringify(writer.index(kind))}\n`);
    await rename(part, into).catch((error: unknown) => {
      if (!hasTokenFile(into)) {
        throw error;
      }
    });
  } finally {
    await rm(part, { recursive: true, force: true }).catch(() => undefined);
  }
}

export class TokenFile {
  readonly index: TokenIndex;
  readonly #file: FileHandle;
  readonly #table: Uint32Array;
  readonly #starts: Float64Array;
  /** The blocks that were read last, the oldest first. */
  readonly #blocks = new Map<number, Promise<Uint32Array>>();

  private constructor(index: TokenIndex, file: FileHandle, table: Uint32Array) {
    this.index = index;
    this.#file = file;
    this.#table = table;
    this.#starts = new Float64Array(index.documents);
    for (let i = 1; i < index.documents; i++) {
      this.#starts[i] = this.#starts[i - 1]! + table[(i - 1) * FIELDS]!;
    }
  }

  /** @throws {TrainerError} where the files do not fit each other */
  static async open(directory: string): Promise<TokenFile> {
    const index = JSON.parse(await readFile(join(directory, 'index.json'), 'utf8')) as TokenIndex;
    const bytes = await readFile(join(directory, 'documents.bin'));
    const file = await open(join(directory, 'tokens.bin'), 'r');
    const isWhole =
      (await file.stat()).size === index.tokens * 4 &&
      bytes.byteLength === index.documents * FIELDS * 4;
    if (!isWhole) {
      await file.close();
      throw new TrainerError(
        `${directory} holds tokens that were cut off or changed. Remove that directory; it is made anew.`,
      );
    }
    const table = new Uint32Array(index.documents * FIELDS);
    new Uint8Array(table.buffer).set(bytes);
    return new TokenFile(index, file, table);
  }

  document(i: number): DocumentEntry {
    const [length, counted, line] = this.#table.subarray(i * FIELDS, (i + 1) * FIELDS);
    return { start: this.#starts[i]!, length: length!, counted: counted!, line: line! };
  }

  /** The tokens from `start` on, with their marks. */
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
    const tokens = new Uint32Array(Math.min(BLOCK, this.index.tokens - first));
    const bytes = new Uint8Array(tokens.buffer);
    for (let done = 0; done < bytes.byteLength; ) {
      const at = first * 4 + done;
      const { bytesRead } = await this.#file.read(bytes, done, bytes.byteLength - done, at);
      if (bytesRead === 0) {
        throw new TrainerError('a token file ended while it was read. Was the cache emptied?');
      }
      done += bytesRead;
    }
    return tokens;
  }
}
