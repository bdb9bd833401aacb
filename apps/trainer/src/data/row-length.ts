import type { TypedDocument } from '@shardweave/nn/embedding';

/** Short texts are packed into rows of so many tokens, which keep products busy. */
const LEAST = 128;

/**
 * The tokens of the rows into which texts are packed: attention is computed over whole rows, so
 * they are no longer than they have to be.
 */
export function rowLengthOf(texts: readonly TypedDocument[], seq: number): number {
  const longest = texts.reduce((most, { ids }) => Math.max(most, ids.length), 0);
  return Math.max(longest, Math.min(seq, LEAST));
}
