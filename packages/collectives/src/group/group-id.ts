// The id of a group that a split makes. It travels in every header, so it stays short however often
// groups are split: 'world/0:1' is color 1 of the world's call 0; a long path becomes a hash of it.

import { fnv1a } from '@shardweave/dtypes';

/** Ids of a few levels stay readable. */
const MAX_PATH_LENGTH = 64;

/** Where the second half of a hash begins, so that the two differ. */
const SECOND_SEED = 0x9dc5811c;

/** Equal on all members, who have the parent's id and the number of the call in common. */
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
