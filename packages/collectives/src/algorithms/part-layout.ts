// How a buffer is divided among ranks: byte offsets of consecutive parts. Even parts today; the
// algorithms only know offsets, so uneven counts need no change in them.

/** `offsets[r]` to `offsets[r + 1]` is rank r's part. */
export interface PartLayout {
  readonly offsets: readonly number[];
}

/** `worldSize` parts of `partBytes` each. */
export function evenParts(worldSize: number, partBytes: number): PartLayout {
  return { offsets: Array.from({ length: worldSize + 1 }, (_, r) => r * partBytes) };
}

/** Parts of whole elements, as even as they come: they differ by one element at most. */
export function balancedParts(
  worldSize: number,
  byteLength: number,
  elementBytes: number,
): PartLayout {
  const count = byteLength / elementBytes;
  return {
    offsets: Array.from(
      { length: worldSize + 1 },
      (_, r) => Math.floor((r * count) / worldSize) * elementBytes,
    ),
  };
}

/** Rank r's part, as a view. */
export function partOf(bytes: Uint8Array, layout: PartLayout, rank: number): Uint8Array {
  return bytes.subarray(layout.offsets[rank], layout.offsets[rank + 1]);
}
