// Writes one save from all ranks: one of them begins it, each writes its part, and the one that
// began it publishes the parts.

import type { PieceStore } from './piece-store.js';
import { requireJson } from './require-json.js';
import type { SavedOptimizer, SavedPart } from './save-index.js';
import { beginSave, type SaveSession } from './save-session.js';
import type { WritePartOptions } from './write-part.js';

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
