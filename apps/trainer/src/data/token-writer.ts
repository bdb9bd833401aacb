// Writes a directory of tokens as they are made; token-file.ts reads it.

import { type FileHandle, open, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { writeAll } from '../files/write-file.js';
import { COUNTED } from './document.js';
import {
  BLOCK,
  FIELDS,
  TOKEN_FILES,
  TOKEN_FORMAT,
  type TokenArray,
  type TokenIndex,
  tokenArray,
} from './token-file.js';

export interface TokenWriterOptions extends Pick<TokenIndex, 'kind'> {
  /** The number of tokens that there are; it decides how many bytes one takes. */
  readonly vocabularySize: number;
}

/** What the maker of tokens knows in the end. */
export type TokenOrigin = Pick<TokenIndex, 'origin' | 'targetBytes' | 'examples'>;

export class TokenWriter implements AsyncDisposable {
  readonly #directory: string;
  readonly #kind: TokenIndex['kind'];
  readonly #tokenBytes: TokenIndex['tokenBytes'];
  readonly #file: FileHandle;
  /** The file of marks; a text, all of which counts, has none. */
  readonly #marksFile: FileHandle | undefined;
  readonly #buffer: TokenArray;
  readonly #marks = new Uint8Array(BLOCK / 8);
  #filled = 0;
  #tokens = 0;
  #largest = 0;
  readonly #documents: number[] = [];
  readonly #labels: number[] = [];

  private constructor(
    directory: string,
    { kind, vocabularySize }: TokenWriterOptions,
    files: { readonly tokens: FileHandle; readonly marks: FileHandle | undefined },
  ) {
    this.#directory = directory;
    this.#kind = kind;
    this.#tokenBytes = vocabularySize <= 2 ** 8 ? 1 : vocabularySize <= 2 ** 16 ? 2 : 4;
    this.#file = files.tokens;
    this.#marksFile = files.marks;
    this.#buffer = tokenArray(this.#tokenBytes, BLOCK);
  }

  /** Begins to write into an empty directory. */
  static async open(directory: string, options: TokenWriterOptions): Promise<TokenWriter> {
    const tokens = await open(join(directory, TOKEN_FILES.tokens), 'w');
    const hasMarks = options.kind === 'documents';
    const marks = hasMarks ? await open(join(directory, TOKEN_FILES.marks), 'w') : undefined;
    return new TokenWriter(directory, options, { tokens, marks });
  }

  get documents(): number {
    return this.#documents.length / FIELDS;
  }

  /** Appends tokens of a text. */
  text(tokens: Uint32Array): Promise<void> {
    return this.#append(tokens);
  }

  /** Appends tokens that are the bytes of a text; a writer of bytes gets nothing else. */
  async bytes(bytes: Uint8Array): Promise<void> {
    let largest = this.#largest;
    for (let i = 0; i < bytes.length; i++) {
      largest = Math.max(largest, bytes[i]!);
    }
    this.#largest = largest;
    this.#tokens += bytes.length;
    await writeAll(this.#file, bytes);
  }

  /** Appends a document, whose tokens have COUNTED where they count. */
  async document(tokens: Uint32Array, line: number): Promise<void> {
    const counted = tokens.subarray(1).reduce((sum, token) => sum + Number(token >= COUNTED), 0);
    this.#documents.push(tokens.length, counted, line);
    await this.#append(tokens);
  }

  /** Appends a text of an example, which is one of ROLES. */
  async part(tokens: Uint32Array, role: number, line: number): Promise<void> {
    this.#documents.push(tokens.length, role, line);
    await this.#append(tokens);
  }

  /** Notes a label of an example: its number, or the bits of a score. */
  label(example: number, value: number): void {
    this.#labels.push(example, value);
  }

  /** Writes what is left, and what the directory holds. */
  async end(origin: TokenOrigin): Promise<void> {
    await this.#flush();
    await this.#file.sync();
    await this.#marksFile?.sync();
    const at = (name: string) => join(this.#directory, name);
    await writeFile(at(TOKEN_FILES.documents), Uint32Array.from(this.#documents));
    if (this.#kind === 'examples') {
      await writeFile(at(TOKEN_FILES.labels), Uint32Array.from(this.#labels));
    }
    const index: TokenIndex = {
      format: TOKEN_FORMAT,
      kind: this.#kind,
      tokenBytes: this.#tokenBytes,
      tokens: this.#tokens,
      documents: this.documents,
      largest: this.#largest,
      ...origin,
    };
    await writeFile(at(TOKEN_FILES.index), `${JSON.stringify(index)}\n`);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#file.close();
    await this.#marksFile?.close();
  }

  async #append(tokens: Uint32Array): Promise<void> {
    for (let i = 0; i < tokens.length; i++) {
      if (this.#filled === BLOCK) {
        await this.#flush();
      }
      const token = (tokens[i]! & ~COUNTED) >>> 0;
      this.#buffer[this.#filled] = token;
      if (tokens[i]! >= COUNTED) {
        this.#marks[this.#filled >> 3]! |= 1 << (this.#filled & 7);
      }
      this.#largest = Math.max(this.#largest, token);
      this.#filled++;
    }
    this.#tokens += tokens.length;
  }

  async #flush(): Promise<void> {
    const { buffer } = this.#buffer;
    await writeAll(this.#file, new Uint8Array(buffer, 0, this.#filled * this.#tokenBytes));
    if (this.#marksFile !== undefined) {
      await writeAll(this.#marksFile, this.#marks.subarray(0, Math.ceil(this.#filled / 8)));
    }
    this.#marks.fill(0);
    this.#filled = 0;
  }
}
