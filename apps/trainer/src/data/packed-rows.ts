// Rows of documents: whole documents beside each other as they fit, in an order that depends only
// on the seed and the epoch.

import { COUNTED } from './document.js';
import { permute } from './row-order.js';
import { NO_TARGET, type RowOrderName, type RowOrigin, type RowSource } from './rows.js';
import type { TokenFile } from './token-file.js';

/**
 * The rows of an epoch. Row r consists of the pieces firstPiece[r] up to, but without, firstPiece[r
 * + 1].
 */
export interface Packing {
  readonly numRows: number;
  readonly firstPiece: Uint32Array;
  /**
   * The document of each piece, by its place among `lengths`, and the token of it that the piece
   * starts with.
   */
  readonly document: Uint32Array;
  readonly start: Uint32Array;
}

/**
 * Packs by next fit: a piece goes into the row that is open if there is room, else into a new one,
 * and earlier rows are not looked at again. A piece is a document or, where that has more than
 * `seq` targets, `seq` of them at a time and then the rest.
 * @param lengths the number of tokens of each document; it has one target less
 */
function packRows(
  order: Iterable<number>,
  { lengths, seq }: { readonly lengths: ArrayLike<number>; readonly seq: number },
): Packing {
  let most = 0;
  for (let i = 0; i < lengths.length; i++) {
    most += Math.max(0, Math.ceil((lengths[i]! - 1) / seq));
  }
  // There may be millions of pieces, so they are counted first and not collected in lists.
  const document = new Uint32Array(most);
  const starts = new Uint32Array(most);
  const firstPiece = new Uint32Array(most + 1);
  let [numPieces, numRows, used] = [0, 0, seq];
  for (const i of order) {
    const targets = lengths[i]! - 1;
    for (let start = 0; start < targets; start += seq, numPieces++) {
      const size = Math.min(seq, targets - start);
      if (used + size > seq) {
        firstPiece[numRows++] = numPieces;
        used = 0;
      }
      document[numPieces] = i;
      starts[numPieces] = start;
      used += size;
    }
  }
  firstPiece[numRows] = numPieces;
  return { numRows, firstPiece: firstPiece.slice(0, numRows + 1), document, start: starts };
}

export interface PackedOptions {
  /** The documents of the file to take, in the file's order. */
  readonly documents: Uint32Array;
  readonly seq: number;
  readonly seed: number;
  readonly order: RowOrderName;
  /** Whether prompts count, too. */
  readonly trainOnPrompt: boolean;
}

export function packedRows(file: TokenFile, options: PackedOptions): RowSource {
  return new PackedRows(file, options);
}

class PackedRows implements RowSource {
  readonly isPacked = true;
  readonly #file: TokenFile;
  readonly #options: PackedOptions;
  readonly #lengths: Uint32Array;
  /** The number of the first row of each epoch known so far. */
  readonly #firstRow: number[] = [0];
  #epoch = -1;
  #packing!: Packing;

  constructor(file: TokenFile, options: PackedOptions) {
    this.#file = file;
    this.#options = options;
    this.#lengths = options.documents.map((i) => file.document(i).length);
    this.#pack(0);
  }

  get numRows(): number {
    this.#locate(0);
    return this.#packing.numRows;
  }

  async numTargets(index: number): Promise<number> {
    let sum = 0;
    for (const piece of this.#pieces(index)) {
      sum += await this.#countOf(piece);
    }
    return sum;
  }

  originOf(index: number): RowOrigin {
    const numbers = new Set(this.#pieces(index).map(({ line }) => line));
    return { part: 0, unit: 'document', numbers: [...numbers] };
  }

  async fill(
    index: number,
    { tokens, targets, segments, positions }: Parameters<RowSource['fill']>[1],
    row: number,
  ): Promise<void> {
    const { seq, trainOnPrompt } = this.#options;
    const end = (row + 1) * seq;
    let at = row * seq;
    const pieces = this.#pieces(index);
    for (const [segment, { start, length }] of pieces.entries()) {
      const read = await this.#file.read(start, length + 1);
      for (let i = 0; i < length; i++, at++) {
        const next = read[i + 1]!;
        tokens[at] = read[i]! & ~COUNTED;
        targets[at] = trainOnPrompt || next >= COUNTED ? next & ~COUNTED : NO_TARGET;
        segments![at] = segment;
        positions![at] = i;
      }
    }
    // The rest of the row is a document of its own, from which nothing is learnt.
    for (let i = 0; at < end; i++, at++) {
      targets[at] = NO_TARGET;
      segments![at] = pieces.length;
      positions![at] = i;
    }
  }

  async #countOf({ start, length, whole }: Piece): Promise<number> {
    if (this.#options.trainOnPrompt) {
      return length;
    }
    if (whole !== undefined) {
      return whole;
    }
    const targets = await this.#file.read(start + 1, length);
    return targets.reduce((sum, token) => sum + Number(token >= COUNTED), 0);
  }

  #pieces(index: number): Piece[] {
    const row = this.#locate(index);
    const { firstPiece, document, start } = this.#packing;
    const pieces: Piece[] = [];
    for (let piece = firstPiece[row]!; piece < firstPiece[row + 1]!; piece++) {
      const entry = this.#file.document(this.#options.documents[document[piece]!]!);
      const length = Math.min(this.#options.seq, entry.length - 1 - start[piece]!);
      const whole = length === entry.length - 1 ? entry.counted : undefined;
      pieces.push({ start: entry.start + start[piece]!, length, whole, line: entry.line });
    }
    return pieces;
  }

  /** Finds the row with that number in its epoch; `#packing` is then that epoch's. */
  #locate(index: number): number {
    while (this.#firstRow.at(-1)! <= index) {
      this.#pack(this.#firstRow.length - 1);
    }
    const next = this.#firstRow.findIndex((first) => first > index);
    const epoch = (next < 0 ? this.#firstRow.length : next) - 1;
    this.#pack(epoch);
    return index - this.#firstRow[epoch]!;
  }

  #pack(epoch: number): void {
    if (epoch === this.#epoch) {
      return;
    }
    const { seq, seed, order } = this.#options;
    const { length } = this.#lengths;
    const documents = order === 'shuffle' ? permute(length, seed, epoch) : this.#lengths.keys();
    this.#packing = packRows(documents, { lengths: this.#lengths, seq });
    this.#epoch = epoch;
    this.#firstRow[epoch + 1] = this.#firstRow[epoch]! + this.#packing.numRows;
  }
}

interface Piece {
  /** The place of its first token in the file. */
  readonly start: number;
  /** The number of its targets. */
  readonly length: number;
  /** The number of them that count, where it is a whole document. */
  readonly whole: number | undefined;
  readonly line: number;
}
