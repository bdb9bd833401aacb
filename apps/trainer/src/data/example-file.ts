// The examples of a token file, each with its texts as the task's model gets them: cut to what a
// row holds, and between the tokens that the tokenizer puts around a text or a pair.

import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { TypedDocument } from '@shardweave/nn/embedding';
import { TrainerError, UsageError } from '../errors.js';
import { type ExampleIndex, ROLES, TOKEN_FILES, TokenFile } from './token-file.js';

/** The numbers of an example's documents in its file. */
export interface ExampleDocuments {
  readonly first: number;
  readonly second: number | undefined;
  readonly negatives: readonly number[];
}

export class ExampleFile implements AsyncDisposable {
  readonly file: TokenFile;
  readonly index: ExampleIndex;
  /** The first document of each example, and the number of all documents. */
  readonly #starts: Uint32Array;
  /** The values of all labels, and where those of each example begin. */
  readonly #values: Uint32Array;
  readonly #firstValue: Uint32Array;

  private constructor(file: TokenFile, labels: Uint32Array) {
    this.file = file;
    this.index = file.index.examples!;
    const { count } = this.index;
    this.#starts = new Uint32Array(count + 1);
    let example = 0;
    for (let i = 0; i < file.index.documents; i++) {
      if (file.document(i).counted === ROLES.first) {
        this.#starts[example++] = i;
      }
    }
    this.#starts[count] = file.index.documents;
    this.#values = new Uint32Array(labels.length / 2);
    this.#firstValue = new Uint32Array(count + 1);
    for (let i = 0; i < this.#values.length; i++) {
      this.#values[i] = labels[2 * i + 1]!;
      this.#firstValue[labels[2 * i]! + 1]!++;
    }
    for (let i = 0; i < count; i++) {
      this.#firstValue[i + 1]! += this.#firstValue[i]!;
    }
  }

  /** @throws {TrainerError} where the files do not fit each other */
  static async open(directory: string): Promise<ExampleFile> {
    const file = await TokenFile.open(directory);
    const bytes = await readFile(join(directory, TOKEN_FILES.labels));
    if (file.index.examples === undefined || bytes.byteLength % 8 !== 0) {
      await file.close();
      throw new TrainerError(
        `${directory} holds no whole examples. Remove that directory; it is made anew.`,
      );
    }
    const labels = new Uint32Array(bytes.byteLength / 4);
    new Uint8Array(labels.buffer).set(bytes);
    return new ExampleFile(file, labels);
  }

  /** The line of an example in its file, from 1. */
  lineOf(example: number): number {
    return this.file.document(this.#starts[example]!).line;
  }

  documentsOf(example: number): ExampleDocuments {
    const [first, end] = [this.#starts[example]!, this.#starts[example + 1]!];
    const negatives = Array.from({ length: Math.max(0, end - first - 2) }, (_, i) => first + 2 + i);
    return { first, second: end - first > 1 ? first + 1 : undefined, negatives };
  }

  /** The numbers of an example's labels, by index.labels. */
  labelsOf(example: number): Uint32Array {
    return this.#values.subarray(this.#firstValue[example], this.#firstValue[example + 1]);
  }

  /** The score of an example; undefined where it has none. */
  scoreOf(example: number): number | undefined {
    const bits = this.labelsOf(example).slice(0, 1);
    return new Float32Array(bits.buffer)[0];
  }

  /** The number of a document's tokens, of which at most `most` are read. */
  lengthOf(document: number, most: number): number {
    return Math.min(this.file.document(document).length, most);
  }

  /** A document's tokens, without those around it. */
  read(document: number, most: number): Promise<Uint32Array> {
    return this.file.read(this.file.document(document).start, this.lengthOf(document, most));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.file.close();
  }
}

/** Puts texts between the tokens of a tokenizer's frame, and cuts what is too long. */
export class Framer {
  readonly #frame: ExampleIndex['frame'];
  readonly #most: number;

  /**
   * @param options.most the most tokens of a framed text or pair
   * @param options.hasPairs whether there are pairs, each text of which has a token at least
   * @throws {UsageError} where no token of a text has room, without the flag of the data
   */
  constructor(
    frame: ExampleIndex['frame'],
    { most, hasPairs }: { readonly most: number; readonly hasPairs: boolean },
  ) {
    const { begin, between, end } = frame;
    const around = begin.length + end.length + (hasPairs ? between.length : 0);
    const least = around + (hasPairs ? 2 : 1);
    if (most < least) {
      throw new UsageError(
        `a row of ${most} tokens has no room for words: ${around} stand around a ${hasPairs ? 'pair' : 'text'}. Give --seq ${least} at least.`,
      );
    }
    this.#frame = frame;
    this.#most = most;
  }

  /** The tokens of a framed text, or of a framed pair of texts, of these lengths. */
  framedLength(length: number, second?: number): number {
    const { begin, between, end } = this.#frame;
    const around = begin.length + end.length + (second === undefined ? 0 : between.length);
    return Math.min(this.#most, length + (second ?? 0) + around);
  }

  /** begin text end, the text cut at its end. */
  text(tokens: Uint32Array): TypedDocument {
    const { begin, end } = this.#frame;
    const ids = [...begin, ...tokens.subarray(0, this.#most - begin.length - end.length), ...end];
    return { ids, tokenTypes: new Uint32Array(ids.length) };
  }

  /** begin first between second end, of which the longer one is cut first. */
  pair(first: Uint32Array, second: Uint32Array): TypedDocument {
    const { begin, between, end } = this.#frame;
    const room = this.#most - begin.length - between.length - end.length;
    const firstLength = Math.min(first.length, Math.max(Math.ceil(room / 2), room - second.length));
    const head = [...begin, ...first.subarray(0, firstLength), ...between];
    const tail = [...second.subarray(0, room - firstLength), ...end];
    const tokenTypes = new Uint32Array(head.length + tail.length).fill(1, head.length);
    return { ids: [...head, ...tail], tokenTypes };
  }
}
