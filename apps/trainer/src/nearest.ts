// Finds the known word, or the path, that a mistyped one was meant to be.

import { readdirSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { editDistance } from '@shardweave/dtypes/messages';

/**
 * The number of letters that may be wrong in a long word; in a short one at most half of its
 * letters may be.
 */
const MOST_EDITS = 3;

/**
 * The known word with the fewest letters wrong, missing, added or swapped; undefined where every
 * one is too different.
 */
export function nearest(word: string, known: Iterable<string>): string | undefined {
  let best: string | undefined;
  let fewest = Math.min(MOST_EDITS, Math.floor(word.length / 2)) + 1;
  for (const candidate of known) {
    const edits = editDistance(word, candidate);
    if (edits < fewest) {
      best = candidate;
      fewest = edits;
    }
  }
  return best;
}

/** A sentence such as ` The nearest name here is runs/search.`; empty where no name is like it. */
export function meantPath(path: string): string {
  try {
    const folder = dirname(path);
    const meant = nearest(basename(path), readdirSync(folder));
    return meant === undefined ? '' : ` The nearest name here is ${join(folder, meant)}.`;
  } catch {
    return ''; // there is no such folder
  }
}
