// The seam of this package: named files that are written and read by ranges. A directory implements
// it (./node), and so does any ShardStore (piecesIn). It knows nothing of tensors and ranks.

import type { HeldFile } from './held-piece.js';

/**
 * Reads ranges of files. A process needs only the index and the files that its own pieces are in;
 * firstOf joins places that each have some of the files.
 *
 * Ownership: `into` belongs to the reader until the promise settles.
 */
export interface PieceReader {
  /** What the reader is, for messages: `directory <path>`. */
  readonly description: string;
  /** The length of a file; undefined where there is none. */
  byteLength(file: string): number | undefined | Promise<number | undefined>;
  /**
   * Fills `into` from byte `offset` on, which may lie beyond 4 GiB. Rejects where the file is too
   * short.
   */
  read(file: string, into: Uint8Array, options: { readonly offset: number }): Promise<void>;
  /**
   * The platform's CRC-32 of `bytes` following those whose checksum is `before`, where it is faster
   * than this package's.
   */
  crc32?(bytes: Uint8Array, before: number): number;
}

/**
 * Writes the files of a save.
 *
 * Ordering: one process saves at a time, the one that has the lock; others write their files for
 * it. What a sink has finished outlives the process, and `replace` takes effect after all of it.
 *
 * Failure: a rejected `replace` leaves the old file or the new one, each as a whole. A file that
 * was never finished may stay as a stray, which the next save removes.
 */
export interface PieceStore extends PieceReader {
  files(): Promise<readonly string[]>;
  /** Begins a file that does not exist yet. */
  create(file: string): Promise<PieceSink>;
  /**
   * Makes `held` a durable file of the save too, without a copy. It returns false, or is absent,
   * where that is impossible.
   */
  adopt?(file: string, held: HeldFile): Promise<boolean>;
  /** Creates or replaces a small file as a whole. */
  replace(file: string, bytes: Uint8Array): Promise<void>;
  /** Removes a file, where there is one. */
  delete(file: string): Promise<void>;
  /**
   * Makes this the only saver until the returned function is called.
   * @throws {CheckpointBusyError} where there is another saver
   */
  lock(): Promise<() => Promise<void>>;
}

/** A file that is being written. */
export interface PieceSink {
  /**
   * Writes at byte `offset`; calls follow one another without gaps. All but the last are of whole
   * pages of 4096 bytes, in memory that begins at a page where the platform has such. The array
   * belongs to the caller again when the promise settles.
   */
  write(bytes: Uint8Array, offset: number): Promise<void>;
  /** Resolves when the whole file is durable. */
  finish(): Promise<void>;
  /** Gives the file up and removes it. */
  abandon(): Promise<void>;
}
