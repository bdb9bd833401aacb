// A save from its beginning to its publication. One process begins it, lets parts be written by
// itself or by others, and publishes them; over ranks, all of them write and agree on how it went.
//
// Note [one valid save]
// The files of a save have its id in their names, so they never overwrite those of the save before.
// The index names one of the two saves, and its replacement is the moment from which the new one
// counts. A process that died on the way leaves files that the index does not name; the next one
// that saves removes them, under the lock.

import { CheckpointIncompleteError, CheckpointUsageError } from './errors.js';
import { labelOf, requireAlike, sizeOf, tensorKey } from './held-piece.js';
import type { PieceStore } from './piece-store.js';
import { findIndex, parseIndex } from './read-index.js';
import { requireJson } from './require-json.js';
import { requireStore } from './require-store.js';
import {
  encodeIndex,
  INDEX_FILE,
  idAfter,
  type SavedOptimizer,
  type SavedPart,
  type SavedPiece,
  type SavedTensor,
  saveOf,
} from './save-index.js';
import type { WritePartOptions } from './write-part.js';

/** What a save keeps beside its pieces. */
export interface SaveRecord {
  readonly optimizer?: SavedOptimizer | undefined;
  /** Whatever else is to be kept: JSON, which reads back as it was written; see requireJson. */
  readonly extra?: Readonly<Record<string, unknown>>;
}

/** A save under way, which takes effect only when its parts are published. */
export interface SaveSession {
  /** The id to pass to writePart, here and on other processes. */
  readonly id: string;
  /**
   * Makes the parts the valid save, removes the save before, and ends the session. A failure leaves
   * either save as a whole.
   * @throws {CheckpointIncompleteError} for elements that no part has, or that two have
   * @throws {StateDictError} for a tensor whose dtype or shape differs between parts
   * @throws {CheckpointUsageError} for an `extra` that is not JSON
   * @throws {CheckpointFormatError} for a part or record that would not open, such as a parameter
   * without a name
   */
  publish(parts: readonly SavedPart[], record?: SaveRecord): Promise<void>;
  /** Ends the session without a save; the one before stays. */
  abandon(): Promise<void>;
}

/**
 * Begins a save and keeps all others out until it is published or abandoned.
 * @throws {CheckpointUsageError} for what is no store, such as a path
 * @throws {CheckpointBusyError} where another save has not ended
 * @throws {CheckpointFormatError} where the index there is not one of this format; it stays
 */
export async function beginSave(store: PieceStore): Promise<SaveSession> {
  requireStore(store);
  const unlock = await store.lock();
  try {
    const former = await findIndex(store);
    await removeFiles(store, (file) => former === undefined || !(file in former.files));
    return sessionOf(store, { id: idAfter(former?.id), unlock });
  } catch (error) {
    await unlock().catch(() => undefined); // the first error is the one to report
    throw error;
  }
}

function sessionOf(
  store: PieceStore,
  { id, unlock }: { readonly id: string; unlock(): Promise<void> },
): SaveSession {
  let isOpen = true;
  const end = async (body: () => Promise<void>): Promise<void> => {
    if (!isOpen) {
      throw new CheckpointUsageError(`publish: expected a save that has not ended, got '${id}'.`);
    }
    isOpen = false;
    try {
      await body();
    } finally {
      await unlock();
    }
  };
  const isOwn = (file: string) => saveOf(file) === id;
  return {
    id,
    publish: (parts, { optimizer, extra = {} } = {}) =>
      end(async () => {
        requireJson(extra, 'extra');
        const files = Object.assign({}, ...parts.map((part) => part.files));
        const tensors = merged(parts);
        const index = encodeIndex({ id, files, tensors, optimizer, extra });
        // An index that does not open must not take the place of one that does.
        parseIndex(new TextDecoder().decode(index), 'the save to publish');
        await store.replace(INDEX_FILE, index);
        // The save is whole already; the next one removes what can't be removed.
        await removeFiles(store, (file) => !isOwn(file)).catch(() => undefined);
      }),
    abandon: () => end(() => removeFiles(store, isOwn)),
  };
}

/** Removes files of saves, and no others. */
async function removeFiles(store: PieceStore, isGone: (file: string) => boolean): Promise<void> {
  for (const file of await store.files()) {
    if (saveOf(file) !== undefined && isGone(file)) {
      await store.delete(file);
    }
  }
}

function merged(parts: readonly SavedPart[]): SavedTensor[] {
  const tensors = new Map<string, SavedTensor & { readonly pieces: SavedPiece[] }>();
  for (const part of parts) {
    for (const { pieces, ...spec } of part.tensors) {
      const key = tensorKey(spec);
      const known = tensors.get(key) ?? { ...spec, pieces: [] };
      tensors.set(key, known);
      requireAlike('publish', known, spec);
      known.pieces.push(...pieces);
    }
  }
  for (const tensor of tensors.values()) {
    tensor.pieces.sort((a, b) => a.start - b.start);
    requireWhole(tensor);
  }
  return [...tensors.values()];
}

/**
 * Checks that pieces have every element once: a reader takes the first piece that has a range, so a
 * second one would be lost.
 */
function requireWhole(tensor: SavedTensor): void {
  const label = labelOf(tensor);
  const end = sizeOf(tensor);
  let before: { readonly end: number; readonly file: string } = { end: 0, file: '' };
  for (const piece of [...tensor.pieces, { start: end, end, file: '' }]) {
    if (piece.start < before.end) {
      throw new CheckpointIncompleteError(
        `publish: expected each element of '${label}' in one part, got [${piece.start}, ${before.end}) in '${before.file}' and in '${piece.file}'. What ranks hold differently needs names of its own; what they hold alike, one of them writes.`,
        label,
      );
    }
    if (piece.start > before.end) {
      throw new CheckpointIncompleteError(
        `publish: expected all ${end} elements of '${label}', got none of [${before.end}, ${piece.start}) in any part. Publish the parts of all processes that hold the model.`,
        label,
      );
    }
    before = piece;
  }
}

// ---- over ranks -------------------------------------------------------------------------------

/** The ranks that write a save, as the caller connects them, and what this one brings. */
export interface SaveOverRanksOptions {
  /** The number of this rank, from 0. */
  readonly rank: number;
  readonly worldSize: number;
  /** Whether this rank begins the save and publishes it; no other rank does. */
  readonly isPublisher: boolean;
  /** JSON that is kept beside the save; the publisher's is taken. */
  readonly extra: Readonly<Record<string, unknown>>;
  /**
   * Runs `own`, as all ranks do, and gives every rank's text in rank order; no texts where `own`
   * gives none, as then on all ranks. It rejects on all of them where `own` does on one.
   */
  agree(own: () => Promise<string | undefined>): Promise<readonly string[]>;
  /** Whether `agree` has rejected with this because `own` did, so that no rank publishes. */
  isCalledOff(error: unknown): boolean;
  /** Makes ready what is written, once the save has begun. */
  begin?(): void;
  /** Writes this rank's part by writePart; undefined where another process has what it holds. */
  write(part: WritePartOptions): Promise<SavedPart | undefined>;
  /** The optimizer with the steps of what this rank holds; asked for when its part is written. */
  optimizer(): SavedOptimizer | undefined;
  /**
   * Ends the call on every rank, with a text for all of them; the publisher, which alone gets the
   * parts, has published them. Default: no texts.
   */
  end?(published: readonly SavedPart[] | undefined): Promise<string>;
}

/**
 * Writes and publishes a save from all ranks in place of the one that is there. Collective. Where
 * one rank fails, nothing is published, and the save before stays.
 * @returns every rank's text of `end`, in rank order
 * @throws what `agree` does, where beginSave, publish or one of the options fails
 */
export async function saveOverRanks(
  store: PieceStore,
  options: SaveOverRanksOptions,
): Promise<readonly string[]> {
  const { rank, worldSize, isPublisher, extra, agree } = options;
  let session: SaveSession | undefined;
  let part: SavedPart | undefined;
  try {
    const [id] = await agree(async () => {
      requireStore(store);
      requireJson(extra, 'extra');
      session = isPublisher ? await beginSave(store) : undefined;
      options.begin?.();
      return session?.id ?? '';
    });
    const told = await agree(async () => {
      part = await options.write({ save: id!, part: `rank-${rank}-of-${worldSize}` });
      return JSON.stringify([part, options.optimizer()?.steps ?? {}]);
    });
    return await agree(async () => {
      const all = told.map((text) => JSON.parse(text) as [SavedPart | null, object]);
      const parts = all.flatMap(([part]) => part ?? []);
      const own = options.optimizer();
      const steps = Object.assign({}, ...all.map(([, counts]) => counts));
      await session?.publish(parts, { optimizer: own && { ...own, steps }, extra });
      return options.end?.(session && parts);
    });
  } catch (error) {
    // Deletion is a best effort, for the first error is the one to report; the next save removes
    // what is left. An error that only this rank knows of says nothing of the save: the publisher
    // may have published.
    if (part !== undefined && session === undefined && options.isCalledOff(error)) {
      for (const file of Object.keys(part.files)) {
        await store.delete(file).catch(() => undefined);
      }
    }
    await session?.abandon().catch(() => undefined);
    throw error;
  }
}
