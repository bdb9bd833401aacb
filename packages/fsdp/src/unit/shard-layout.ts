// Which part of a flat parameter each rank owns. Pure arithmetic.

import { alignElements, type FlatLayout, flatLayout } from '@shardweave/nn/flat';

/** Elements [start, end) of a whole; end - start may be 0. */
export interface ElementRange {
  readonly start: number;
  readonly end: number;
}

/** A flat parameter's map, and its cut into shards. */
export interface ShardLayout extends FlatLayout {
  /** Equal for all ranks; worldSize of them hold elementCount and a tail of padding. */
  readonly shardLength: number;
  readonly worldSize: number;
}

/** Lays out parameters of the given sizes for `worldSize` ranks. */
export function shardLayout(sizes: readonly number[], worldSize: number): ShardLayout {
  const layout = flatLayout(sizes);
  const shardLength = alignElements(Math.ceil(layout.elementCount / worldSize));
  return { ...layout, shardLength, worldSize };
}

/** A rank's part of a parameter, counted from the start of its shard. */
export interface ParameterPiece extends ElementRange {
  /** Element of the parameter that lies at `start`. */
  readonly first: number;
}

/** The part of parameter `index` inside the shard of `rank`. */
export function pieceOf(layout: ShardLayout, index: number, rank: number): ParameterPiece {
  const shardStart = rank * layout.shardLength;
  const offset = layout.offsets[index]!;
  const start = clamp(offset - shardStart, layout.shardLength);
  const end = clamp(offset + layout.sizes[index]! - shardStart, layout.shardLength);
  return { start, end, first: start === end ? 0 : shardStart + start - offset };
}

function clamp(value: number, length: number): number {
  return Math.min(Math.max(value, 0), length);
}
