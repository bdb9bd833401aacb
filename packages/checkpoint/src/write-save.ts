// Writes a save from one process that has everything.

import type { HeldPiece } from './held-piece.js';
import type { PieceStore } from './piece-store.js';
import type { SavedPart } from './save-index.js';
import { beginSave, type SaveRecord } from './save-session.js';
import { writePart } from './write-part.js';

/** What a save is written from: the pieces, and the record that goes beside them. */
export interface SaveContents {
  readonly pieces: Iterable<HeldPiece> | AsyncIterable<HeldPiece>;
  /** The record; it is asked for when all pieces are written. Default: empty. */
  record?(): SaveRecord;
}

/**
 * Writes and publishes a save in place of the one that is there. Throws as beginSave, writePart and
 * publish do.
 * @example
 * ```ts
 * import { mkdtemp } from 'node:fs/promises';
 * import { tmpdir } from 'node:os';
 * import { join } from 'node:path';
 * import { openSave, writeSave } from '@shardweave/checkpoint';
 * import { pieceDirectory } from '@shardweave/checkpoint/node';
 *
 * const store = pieceDirectory(await mkdtemp(join(tmpdir(), 'save-')));
 * const values = Float32Array.of(1, 2, 3);
 * const bias = { kind: 'parameter', name: 'bias', dtype: 'f32', shape: [3] } as const;
 * const read = async (start: number, end: number) =>
 *   new Uint8Array(values.slice(start, end).buffer);
 * await writeSave(store, {
 *   pieces: [{ ...bias, start: 0, end: 3, read }],
 *   record: () => ({ extra: { step: 100 } }),
 * });
 * console.log((await openSave(store)).extra); // logs { step: 100 }
 * ```
 */
export async function writeSave(store: PieceStore, contents: SaveContents): Promise<void> {
  const session = await beginSave(store);
  let part: SavedPart;
  try {
    part = await writePart(store, contents.pieces, { save: session.id, part: 'all' });
  } catch (error) {
    await session.abandon().catch(() => undefined); // the first error is the one to report
    throw error;
  }
  await session.publish([part], contents.record?.());
}
