// One process's part of a save: its pieces one behind the other in a file of its own.

import { crc32 } from './crc32.js';
import { CheckpointUsageError } from './errors.js';
import { type HeldPiece, labelOf, requireAlike, tensorKey } from './held-piece.js';
import type { PieceSink, PieceStore } from './piece-store.js';
import {
  PIECE_BYTES,
  pieceByteLength,
  pieceFile,
  type SavedPart,
  type SavedPiece,
  type SavedTensor,
} from './save-index.js';

/** Pieces end at multiples of it, so that devices, which read whole words, read each on its own. */
const PIECE_ALIGN_ELEMENTS = 128;

export interface WritePartOptions {
  /** The id of the session that will publish it. */
  readonly save: string;
  /** A name that no other part of this save has, such as `rank-0-of-2`: letters, digits, `-`, `_`. */
  readonly part: string;
}

/**
 * Writes pieces in their order, at most PIECE_BYTES of them in memory at once. What it returns goes to
 * whoever publishes the save; until then it is none.
 * @throws what a piece's `read` or the store throws; the file is removed then
 */
export async function writePart(
  store: PieceStore,
  pieces: Iterable<HeldPiece> | AsyncIterable<HeldPiece>,
  { save, part }: WritePartOptions,
): Promise<SavedPart> {
  if (!/^[\w-]+$/.test(part)) {
    throw new CheckpointUsageError(
      `writePart: expected a part of letters, digits, '-' and '_', got '${part}'.`,
    );
  }
  const file = pieceFile(save, part);
  const sink = await store.create(file);
  try {
    const writer = new PartWriter(store, sink, file);
    for await (const piece of pieces) {
      await writer.add(piece);
    }
    await sink.finish();
    return { file, byteLength: writer.byteLength, tensors: writer.tensors };
  } catch (error) {
    await sink.abandon().catch(() => undefined); // the first error is the one to tell
    throw error;
  }
}

class PartWriter {
  byteLength = 0;
  readonly #found = new Map<string, SavedTensor & { readonly pieces: SavedPiece[] }>();
  readonly #store: PieceStore;
  readonly #sink: PieceSink;
  readonly #file: string;

  constructor(store: PieceStore, sink: PieceSink, file: string) {
    this.#store = store;
    this.#sink = sink;
    this.#file = file;
  }

  get tensors(): readonly SavedTensor[] {
    return [...this.#found.values()];
  }

  async add(piece: HeldPiece): Promise<void> {
    const { kind, name, state, dtype, shape, end } = piece;
    const key = tensorKey(piece);
    const tensor = this.#found.get(key) ?? { kind, name, state, dtype, shape, pieces: [] };
    this.#found.set(key, tensor);
    requireAlike('writePart', tensor, piece);
    const elementBytes = pieceByteLength({ start: 0, end: 1 }, piece);
    const most = Math.floor(PIECE_BYTES / elementBytes / PIECE_ALIGN_ELEMENTS);
    for (let start = piece.start; start < end; ) {
      const next = Math.min(end, start + most * PIECE_ALIGN_ELEMENTS);
      const bytes = await piece.read(start, next);
      if (bytes.byteLength !== (next - start) * elementBytes) {
        throw new CheckpointUsageError(
          `writePart: expected ${(next - start) * elementBytes} bytes of '${labelOf(piece)}', got ${bytes.byteLength}.`,
        );
      }
      const checksum = (this.#store.crc32 ?? crc32)(bytes, 0);
      const byteOffset = this.byteLength;
      await this.#sink.write(bytes, byteOffset);
      this.byteLength += bytes.byteLength;
      tensor.pieces.push({ start, end: next, file: this.#file, byteOffset, checksum });
      start = next;
    }
  }
}
