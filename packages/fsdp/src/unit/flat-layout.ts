// Where parameters lie inside a flat one, and which part of it each rank owns. Pure arithmetic.

/**
 * Every parameter starts at a multiple of this, and so does every shard: 256 bytes in 16 bits, the
 * alignment of WebGPU's storage bindings. The same on every device and in every dtype, so that ranks
 * on CPU and GPU, and files, share one layout.
 */
export const FLAT_ALIGN_ELEMENTS = 128;

/** Elements [start, end) of a whole; end - start may be 0. */
export interface ElementRange {
  readonly start: number;
  readonly end: number;
}

/** A flat parameter's map. All in elements. */
export interface FlatLayout {
  /** First element of each parameter, in order. */
  readonly offsets: readonly number[];
  readonly sizes: readonly number[];
  /** The parameters with the gaps between them. */
  readonly elementCount: number;
  /** Equal for all ranks; worldSize of them hold elementCount and a tail of padding. */
  readonly shardLength: number;
  readonly worldSize: number;
}

/** Lays out parameters of the given sizes for `worldSize` ranks. */
export function flatLayout(sizes: readonly number[], worldSize: number): FlatLayout {
  const offsets: number[] = [];
  let end = 0;
  for (const size of sizes) {
    offsets.push(end);
    end += alignUp(size);
  }
  const shardLength = alignUp(Math.ceil(end / worldSize));
  return { offsets, sizes, elementCount: end, shardLength, worldSize };
}

/** The part of parameter `index` inside the shard of `rank`, counted from the shard's start. */
export function pieceOf(layout: FlatLayout, index: number, rank: number): ElementRange {
  const shardStart = rank * layout.shardLength;
  const offset = layout.offsets[index]!;
  const start = clamp(offset - shardStart, layout.shardLength);
  const end = clamp(offset + layout.sizes[index]! - shardStart, layout.shardLength);
  return { start, end };
}

function alignUp(elements: number): number {
  return Math.ceil(elements / FLAT_ALIGN_ELEMENTS) * FLAT_ALIGN_ELEMENTS;
}

function clamp(value: number, length: number): number {
  return Math.min(Math.max(value, 0), length);
}
