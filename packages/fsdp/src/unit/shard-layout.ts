// Which part of a flat parameter each rank owns. Pure arithmetic.

import {
  alignElements,
  type FlatLayout,
  flatLayout,
  type ParameterPiece,
  pieceIn,
} from '@shardweave/nn/flat';

/** The layout of a flat parameter, and its cut into shards. */
export interface ShardLayout extends FlatLayout {
  /**
   * The elements of each shard, equal for all ranks; worldSize shards hold elementCount elements
   * and a tail of padding.
   */
  readonly shardLength: number;
  readonly worldSize: number;
}

/**
 * Lays out parameters of the given sizes for `worldSize` ranks. A shard of nothing is padding, for
 * no storage is empty.
 * @param rowLength shards are whole rows of so many elements. Default 1
 */
export function shardLayout(
  sizes: readonly number[],
  worldSize: number,
  rowLength = 1,
): ShardLayout {
  const layout = flatLayout(sizes);
  const rows = Math.ceil(layout.elementCount / worldSize / rowLength);
  const shardLength = alignElements(Math.max(1, rows * rowLength));
  return { ...layout, shardLength, worldSize };
}

/**
 * The part of parameter `index` inside the shard of `rank`, counted from the start of the shard.
 */
export function pieceOf(layout: ShardLayout, index: number, rank: number): ParameterPiece {
  const { shardLength } = layout;
  return pieceIn(layout, index, { start: rank * shardLength, length: shardLength });
}
