// Reads a save: first its names are compared with those wanted, and every piece that will be read
// is checked, and only then is anything written into the model.

import { fromF32Array, isFloat, toF32Array } from '@shardweave/dtypes';
import { crc32 } from './crc32.js';
import { CheckpointCorruptError, CheckpointReplacedError, StateDictError } from './errors.js';
import { labelOf, type TensorSpec, tensorKey, typeText, type WantedPiece } from './held-piece.js';
import type { PieceReader } from './piece-store.js';
import { findIndex, readIndex } from './read-index.js';
import {
  hex,
  pieceByteLength,
  type SavedOptimizer,
  type SavedPiece,
  type SavedTensor,
  type SaveIndex,
} from './save-index.js';

/** How strictly the names of a save must fit those that the model expects. */
export interface FitOptions {
  /** Refuse missing and unexpected names. Default true. */
  readonly strict?: boolean;
  /** Tells which saved tensors need not be expected here. Default: none. */
  ignores?(tensor: TensorSpec): boolean;
}

/** Opens the save of `reader`. It reads only the index, and throws as readIndex does. */
export async function openSave(reader: PieceReader): Promise<Save> {
  return new Save(reader, await readIndex(reader));
}

/**
 * Opens the save of `reader` and lets `load` read it. Where another save takes its place meanwhile
 * and its files are gone, `load` is called again with that one: it ends with one whole save.
 * @throws what readIndex and `load` throw
 */
export async function loadSave<T>(
  reader: PieceReader,
  load: (save: Save) => Promise<T>,
): Promise<T> {
  for (;;) {
    const save = await openSave(reader);
    try {
      return await load(save);
    } catch (error) {
      if (!(error instanceof CheckpointReplacedError)) {
        throw error;
      }
    }
  }
}

/** A save opened for reading: its tensors, its record, and the pieces in its files. */
export class Save {
  /** The id of the save; every save has another one. */
  readonly id: string;
  readonly optimizer: SavedOptimizer | undefined;
  readonly extra: Readonly<Record<string, unknown>>;
  /** The tensors by tensorKey. */
  readonly tensors: ReadonlyMap<string, SavedTensor>;
  /** The byte length of each file of pieces. */
  readonly files: SaveIndex['files'];
  readonly #reader: PieceReader;
  #buffer = new Uint8Array(0);

  constructor(reader: PieceReader, { id, files, tensors, optimizer, extra }: SaveIndex) {
    this.id = id;
    this.optimizer = optimizer;
    this.extra = extra;
    this.tensors = new Map(tensors.map((tensor) => [tensorKey(tensor), tensor]));
    this.#reader = reader;
    this.files = files;
  }

  /**
   * Compares the saved tensors with the wanted ones; floats of any dtype fit floats.
   * @throws {StateDictError} with all that is missing, unexpected or misshapen
   */
  checkFit(expected: Iterable<TensorSpec>, options: FitOptions = {}): void {
    const { strict: isStrict = true, ignores = () => false } = options;
    const wanted = new Map([...expected].map((spec) => [tensorKey(spec), spec]));
    const without = (keys: ReadonlyMap<string, unknown>, from: Iterable<[string, TensorSpec]>) =>
      isStrict ? [...from].flatMap(([key, spec]) => (keys.has(key) ? [] : [spec])) : [];
    const missing = without(this.tensors, wanted).map(labelOf);
    const unexpected = without(wanted, this.tensors)
      .filter((spec) => !ignores(spec))
      .map(labelOf);
    const mismatched = [...wanted].flatMap(([key, spec]) => {
      const saved = this.tensors.get(key);
      return saved === undefined || isFitting(saved, spec) ? [] : [{ spec, saved }];
    });
    if (missing.length + unexpected.length + mismatched.length === 0) {
      return;
    }
    const texts = mismatched.map(
      ({ spec, saved }) => `${labelOf(spec)}: expected ${typeText(spec)}, got ${typeText(saved)}`,
    );
    throw new StateDictError(
      `load: expected the ${wanted.size} tensors of this model. Missing: ${listed(missing)}. Unexpected: ${listed(unexpected)}. Misshapen: ${listed(texts, '; ')}.`,
      { missing, unexpected, mismatched: mismatched.map(({ spec }) => labelOf(spec)) },
    );
  }

  /**
   * Reads all pieces that `fill` will read for the same `wanted`, and compares their checksums. One
   * piece of the save is in memory at a time.
   * @throws {CheckpointCorruptError} for a file that is missing, too short or damaged
   * @throws {CheckpointReplacedError} where another save has taken its place
   */
  async verify(wanted: Iterable<WantedPiece>): Promise<void> {
    const touched = new Map<SavedPiece, TensorSpec>();
    for (const piece of wanted) {
      for (const saved of this.#piecesOf(piece)) {
        touched.set(saved, piece);
      }
    }
    for (const file of new Set([...touched.keys()].map((piece) => piece.file))) {
      await this.#orReplaced(() => this.#checkLength(file));
    }
    for (const [piece, tensor] of touched) {
      await this.#orReplaced(() => this.#read(piece, tensor));
    }
  }

  /**
   * Writes what is saved into the wanted pieces, in their dtype. A piece whose tensor the save
   * lacks keeps its values. Each saved piece is checked again, because files may have changed since
   * verify.
   * @throws {CheckpointError} as verify does; what was written until then stays
   */
  async fill(wanted: Iterable<WantedPiece>): Promise<void> {
    for (const piece of wanted) {
      const saved = this.tensors.get(tensorKey(piece));
      for (const part of this.#piecesOf(piece)) {
        const bytes = await this.#orReplaced(() => this.#read(part, piece));
        const start = Math.max(part.start, piece.start);
        const end = Math.min(part.end, piece.end);
        const from = pieceByteLength({ start: part.start, end: start }, saved!);
        const own = bytes.subarray(from, from + pieceByteLength({ start, end }, saved!));
        const isSame = saved!.dtype === piece.dtype;
        const values = isSame ? own : fromF32Array(toF32Array(own, saved!.dtype), piece.dtype);
        await piece.write(start, values);
      }
    }
  }

  /** The saved pieces that have an element of a wanted one. */
  #piecesOf(wanted: WantedPiece): readonly SavedPiece[] {
    const pieces = this.tensors.get(tensorKey(wanted))?.pieces ?? [];
    return pieces.filter(({ start, end }) => start < wanted.end && wanted.start < end);
  }

  /**
   * Tells a file that is gone because the save was replaced from one that is missing.
   * @throws {CheckpointReplacedError} where reading failed and the index names another save
   */
  async #orReplaced<T>(reading: () => Promise<T>): Promise<T> {
    try {
      return await reading();
    } catch (error) {
      const index = await findIndex(this.#reader).catch(() => undefined);
      if (index === undefined || index.id === this.id) {
        throw error;
      }
      throw new CheckpointReplacedError(
        `load: expected the files of '${this.id}' in ${this.#reader.description}, got '${index.id}' in its place meanwhile. Load again.`,
        { cause: error },
      );
    }
  }

  async #checkLength(file: string): Promise<void> {
    const expected = this.files[file]!;
    const got = await this.#reader.byteLength(file);
    if (got === expected) {
      return;
    }
    throw new CheckpointCorruptError(
      `load: expected ${expected} bytes in '${file}' in ${this.#reader.description}, got ${got ?? 'no such file'}.`,
      { file },
    );
  }

  /** The bytes of a saved piece, in a buffer that the next call uses again. */
  async #read(piece: SavedPiece, tensor: TensorSpec): Promise<Uint8Array> {
    const saved = this.tensors.get(tensorKey(tensor))!;
    const byteLength = pieceByteLength(piece, saved);
    if (this.#buffer.byteLength < byteLength) {
      this.#buffer = new Uint8Array(byteLength);
    }
    const bytes = this.#buffer.subarray(0, byteLength);
    await this.#reader.read(piece.file, bytes, { offset: piece.byteOffset });
    const checksum = this.#reader.crc32?.(bytes, 0) ?? crc32(bytes);
    if (checksum === piece.checksum) {
      return bytes;
    }
    throw new CheckpointCorruptError(
      `load: expected checksum ${hex(piece.checksum)} of '${labelOf(tensor)}' elements [${piece.start}, ${piece.end}), got ${hex(checksum)} of ${byteLength} bytes from ${piece.byteOffset} on in '${piece.file}' in ${this.#reader.description}.`,
      { file: piece.file, tensors: [labelOf(tensor)] },
    );
  }
}

function isFitting(saved: TensorSpec, { dtype, shape }: TensorSpec): boolean {
  const isConvertible = saved.dtype === dtype || (isFloat(saved.dtype) && isFloat(dtype));
  return isConvertible && saved.shape.join() === shape.join();
}

function listed(texts: readonly string[], between = ', '): string {
  return texts.join(between) || 'none';
}
