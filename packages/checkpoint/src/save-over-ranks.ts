// Writes one save from all ranks: one of them begins it, each writes its part, and the one that
// began it publishes the parts.

import type { PieceStore } from './piece-store.js';
import { requireJson } from './require-json.js';
import type { SavedOptimizer, SavedPart } from './save-index.js';
import { beginSave, type SaveSession } from './save-session.js';
import type { WritePartOptions } from './write-part.js';

/**
 * The ranks that write a save, as the caller connects them, and what this one brings. `Told` is
 * JSON, which all ranks hear of it.
 */
export interface SaveOverRanksOptions<Told> {
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
  /** What the ranks hear of this one once its part is written. */
  tell(part: SavedPart | undefined): Told;
  /** A rank's part and steps, from what it told. */
  read(told: Told): {
    readonly part?: SavedPart | null | undefined;
    readonly steps?: SavedOptimizer['steps'] | undefined;
  };
  /** The optimizer to save, with the publisher's steps or all; asked for when all have written. */
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
export async function saveOverRanks<Told>(
  store: PieceStore,
  options: SaveOverRanksOptions<Told>,
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
      return JSON.stringify(options.tell(part));
    });
    return await agree(async () => {
      const all = told.map((text) => options.read(JSON.parse(text) as Told));
      const parts = all.flatMap((each) => each.part ?? []);
      const own = options.optimizer();
      // Each rank knows the steps of the parameters that it holds.
      const steps = Object.assign({}, ...all.map((each) => each.steps));
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
