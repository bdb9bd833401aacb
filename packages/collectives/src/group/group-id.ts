// The id of a group that a split makes. It travels in every header, so it stays short however often groups
// are split: 'world/0:1' is color 1 of the world's call 0; a long path becomes a hash of it.

import { sha256 } from '@noble/hashes/sha2.js';
import { bytesToHex } from '@noble/hashes/utils.js';

/** Ids of a few levels read as they are. */
const MAX_PATH_LENGTH = 64;
const HASH_BYTES = 8;

/** Equal on all members, who have the parent's id and the number of the call in common. */
export function splitId(parent: string, sequence: number, color: number): string {
  const id = `${parent}/${sequence}:${color}`;
  if (id.length <= MAX_PATH_LENGTH) {
    return id;
  }
  const hash = sha256(new TextEncoder().encode(parent)).subarray(0, HASH_BYTES);
  return `~${bytesToHex(hash)}/${sequence}:${color}`;
}
