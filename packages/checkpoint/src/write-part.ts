// Writes one process's part of a save: its pieces one after another in a file of its own.

import { BlockWriter } from './block-writer.js';
import { crc32 } from './crc32.js';
import { CheckpointUsageError } from './errors.js';
import { type HeldFile, type HeldPiece, labelOf, requireAlike, tensorKey } from './held-piece.js';
import type { PieceStore } from './piece-store.js';
import { requireStore } from './require-store.js';
import {
  countOf,
  PIECE_BYTES,
  pieceByteLength,
  pieceFile,
  type SavedPart,
  type SavedPiece,
  type SavedTensor,
  saveOf,
} from './save-index.js';

/**
 * The bytes that are read and written at a time, several pieces at once: that takes few turns of
 * the event loop beside busy devices.
 */
const BLOCK_BYTES = 4 * PIECE_BYTES;
/**
 * Pieces end at multiples of this, so that devices, which read whole words, can read each on its
 * own.
 */
const PIECE_ALIGN_ELEMENTS = 128;

/** The save that a part belongs to, and the name of the part. */
export interface WritePartOptions {
  /** The id of the session that will publish it. */
  readonly save: string;
  /**
   * A name that no other part of this save has, such as `rank-0-of-2`: letters, digits, `-` and
   * `_`.
   */
  readonly part: string;
}

/**
 * Writes pieces in their order. At most two blocks of 4 MiB are in memory: one that is being
 * written, and the next one, which is read meanwhile. A piece in a file that the store can adopt is
 * read only for its checksum. The result goes to the process that publishes the save, which is not
 * valid before.
 * @throws what a piece's `read` or the store throws; the file is removed then
 */
export async function writePart(
  store: PieceStore,
  pieces: Iterable<HeldPiece> | AsyncIterable<HeldPiece>,
  { save, part }: WritePartOptions,
): Promise<SavedPart> {
  requireStore(store);
  if (!/^[\w-]+$/.test(part)) {
    throw new CheckpointUsageError(
      `writePart: expected a part of letters, digits, '-' and '_', got '${part}'.`,
    );
  }
  const file = pieceFile(save, part);
  await removeOlder(store, save);
  const sink = await store.create(file);
  const blocks = new BlockWriter(sink, { most: BLOCK_BYTES });
  const writer = new PartWriter(store, blocks, { file, save, part });
  try {
    for await (const piece of pieces) {
      await writer.add(piece);
    }
    await blocks.finish();
    await sink.finish();
    return { files: writer.files, tensors: writer.tensors };
  } catch (error) {
    await blocks.settled();
    for (const adopted of Object.keys(writer.files).filter((name) => name !== file)) {
      await store.delete(adopted).catch(() => undefined);
    }
    await sink.abandon().catch(() => undefined); // the first error is the one to report
    throw error;
  }
}

/**
 * Removes what saves before the valid one have left in this store. Its count is one less than that
 * of the save that begins. The process that publishes sees to its own store; the others may have
 * directories of their own.
 */
async function removeOlder(store: PieceStore, save: string): Promise<void> {
  for (const file of await store.files()) {
    const former = saveOf(file);
    if (former !== undefined && countOf(former) < countOf(save) - 1) {
      await store.delete(file);
    }
  }
}

class PartWriter {
  /** The names of files that were adopted; undefined for a file that can't be. */
  readonly #adopted = new Map<HeldFile, string | undefined>();
  readonly #found = new Map<string, SavedTensor & { readonly pieces: SavedPiece[] }>();
  readonly #store: PieceStore;
  readonly #blocks: BlockWriter;
  readonly #names: WritePartOptions & { readonly file: string };

  constructor(
    store: PieceStore,
    blocks: BlockWriter,
    names: WritePartOptions & { readonly file: string },
  ) {
    this.#store = store;
    this.#blocks = blocks;
    this.#names = names;
  }

  get files(): Readonly<Record<string, number>> {
    const adopted = [...this.#adopted].flatMap(([{ byteLength }, name]) =>
      name === undefined ? [] : [[name, byteLength] as const],
    );
    return Object.fromEntries([[this.#names.file, this.#blocks.byteLength], ...adopted]);
  }

  get tensors(): readonly SavedTensor[] {
    return [...this.#found.values()];
  }

  /** Resolves when the whole piece is read; what was read last may not be written yet. */
  async add(piece: HeldPiece): Promise<void> {
    const { kind, name, state, dtype, shape, end } = piece;
    const key = tensorKey(piece);
    const tensor = this.#found.get(key) ?? { kind, name, state, dtype, shape, pieces: [] };
    this.#found.set(key, tensor);
    requireAlike('writePart', tensor, piece);
    const elementBytes = pieceByteLength({ start: 0, end: 1 }, piece);
    const most =
      Math.floor(PIECE_BYTES / elementBytes / PIECE_ALIGN_ELEMENTS) * PIECE_ALIGN_ELEMENTS;
    const blockLength = most * (BLOCK_BYTES / PIECE_BYTES);
    const adopted = await this.#adopt(piece);
    for (let start = piece.start; start < end; start += blockLength) {
      const next = Math.min(end, start + blockLength);
      const byteLength = (next - start) * elementBytes;
      const bytes = await piece.read(start, next, await this.#blocks.room(byteLength));
      if (bytes.byteLength !== byteLength) {
        throw new CheckpointUsageError(
          `writePart: expected ${byteLength} bytes of '${labelOf(piece)}', got ${bytes.byteLength}.`,
        );
      }
      const place = adopted?.at(start) ?? {
        file: this.#names.file,
        byteOffset: this.#blocks.byteLength,
      };
      for (let from = start; from < next; from += most) {
        const to = Math.min(next, from + most);
        const part = bytes.subarray((from - start) * elementBytes, (to - start) * elementBytes);
        const checksum = (this.#store.crc32 ?? crc32)(part, 0);
        const byteOffset = place.byteOffset + (from - start) * elementBytes;
        tensor.pieces.push({ start: from, end: to, file: place.file, byteOffset, checksum });
      }
      if (adopted === undefined) {
        this.#blocks.append(bytes);
      }
    }
  }

  /** Where elements of a piece lie in a file that the save adopts; undefined where it can't. */
  async #adopt(piece: HeldPiece) {
    const { inFile } = piece;
    if (inFile === undefined || this.#store.adopt === undefined) {
      return undefined;
    }
    const { file: held, byteOffset } = inFile;
    if (!this.#adopted.has(held)) {
      const { save, part } = this.#names;
      const name = pieceFile(save, `${part}-file-${this.#adopted.size}`);
      this.#adopted.set(held, (await this.#store.adopt(name, held)) ? name : undefined);
    }
    const file = this.#adopted.get(held);
    if (file === undefined) {
      return undefined;
    }
    const at = (element: number) => {
      const before = pieceByteLength({ start: piece.start, end: element }, piece);
      return { file, byteOffset: byteOffset + before };
    };
    return { at };
  }
}
