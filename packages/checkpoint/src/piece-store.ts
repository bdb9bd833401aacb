// The seam of this package: named files that are written and read by ranges. Implemented by a
// directory (./node) and by any ShardStore (piecesIn). It knows no tensors and no ranks.

import type { HeldFile } from './held-piece.js';

/**
 * Gives ranges of files; a ShardStore is one. A process needs only the files that its pieces are
 * in, and the index: what some see and others don't is put together by firstOf.
 *
 * Ownership: `into` is the reader's until the promise settles.
 */
export interface PieceReader {
  /** What it is, for messages: `directory <path>`. */
  readonly description: string;
  /** undefined where there is no such file. */
  byteLength(file: string): number | undefined | Promise<number | undefined>;
  /**
   * Fills `into` from byte `offset` on, which may lie beyond 4 GiB. Rejects where the file is too
   * short.
   */
  read(file: string, into: Uint8Array, options: { readonly offset: number }): Promise<void>;
  /**
   * The platform's CRC-32 of `bytes` behind those whose value is `before`, where it is faster than
   * ours.
   */
  crc32?(bytes: Uint8Array, before: number): number;
}

/**
 * Ordering: one process at a time saves, the one that has the lock; others write their files for
 * it. What a sink has finished outlives the process, and `replace` comes after all of it.
 *
 * Failure: a rejected `replace` leaves the old file or the new one, each as a whole. A file that
 * was never finished may stay as a stray, which the next save removes.
 */
export interface PieceStore extends PieceReader {
  files(): Promise<readonly string[]>;
  /** Begins a file that is not there yet. */
  create(file: string): Promise<PieceSink>;
  /**
   * Makes `held` a file of its own too, durable, without a copy; false, or absent, where it can't.
   */
  adopt?(file: string, held: HeldFile): Promise<boolean>;
  /** Creates or replaces a small file, as a whole. */
  replace(file: string, bytes: Uint8Array): Promise<void>;
  /** Removes a file; nothing where there is none. */
  delete(file: string): Promise<void>;
  /**
   * Makes this the only saver until the returned function is called.
   * @throws {CheckpointBusyError} where there is another one
   */
  lock(): Promise<() => Promise<void>>;
}

/** A file that is being written. */
export interface PieceSink {
  /**
   * Writes at byte `offset`; calls follow one another without gaps. The array is the caller's again
   * then.
   */
  write(bytes: Uint8Array, offset: number): Promise<void>;
  /** Resolves when all of it is durable. */
  finish(): Promise<void>;
  /** Gives the file up and removes it. */
  abandon(): Promise<void>;
}
