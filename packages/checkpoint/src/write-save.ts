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
