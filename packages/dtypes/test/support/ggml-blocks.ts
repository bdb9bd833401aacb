// What ggml's library says of blocks, in the forms in which tests ask it.
import { type BlockType, decodeBlocks } from '@shardweave/dtypes/blocks';
import { ggmlDecode } from '../../../../tooling/test-kit/ggml.ts';

/** Returns the first number that is not ggml's to the bit; -1 where all are. */
export function firstUnlikeGgml(type: BlockType, bytes: Uint8Array, count: number): number {
  const ours = new Uint32Array(count);
  const theirs = new Uint32Array(count);
  decodeBlocks(type, bytes, new Float32Array(ours.buffer));
  ggmlDecode(type, bytes, new Float32Array(theirs.buffer));
  return ours.findIndex((bits, i) => bits !== theirs[i]);
}

/** Returns the root of the mean squared error of blocks. */
export function errorOf(type: BlockType, bytes: Uint8Array, values: Float32Array): number {
  const decoded = new Float32Array(values.length);
  decodeBlocks(type, bytes, decoded);
  const sum = decoded.reduce((all, value, i) => all + (value - values[i]!) ** 2, 0);
  return Math.sqrt(sum / values.length);
}
