// The id of a group that a split makes. It travels in every header, so it stays short however often
// groups are split: 'world/0:1' is color 1 of the world's call 0; a hash replaces a long path.

import { fnv1a } from '@shardweave/dtypes';

/** The longest path that is kept as it is, which is one of a few levels. */
const MAX_PATH_LENGTH = 64;

/** The start of the second half of a hash, so that the two halves differ. */
const SECOND_SEED = 0x9dc5811c;

/**
 * The id of a new group; equal on all its members, because they share the parent's id and the
 * number of the call.
 */
export function splitId(parent: string, sequence: number, color: number): string {
  const id = `${parent}/${sequence}:${color}`;
  if (id.length <= MAX_PATH_LENGTH) {
    return id;
  }
  const hash = [fnv1a(parent), fnv1a(parent, SECOND_SEED)].map(hex).join('');
  return `~${hash}/${sequence}:${color}`;
}

function hex(word: number): string {
  return word.toString(16).padStart(8, '0');
}
