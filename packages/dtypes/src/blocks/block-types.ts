// The types of ggml that keep numbers in blocks: some bits each, and a scale that all of them
// share. A block stands by itself, so a tensor may be cut between any two.

/** ggml's names of the block types. */
export type BlockType = 'q8_0' | 'q4_0' | 'q4_1' | 'q5_0' | 'q5_1' | 'q4_K' | 'q5_K' | 'q6_K';

/** The size of one block. */
export interface BlockSize {
  /** How many numbers it holds. */
  readonly elements: number;
  /** How many bytes it takes: always an even number. */
  readonly bytes: number;
}

/** The block size of each type. */
export const BLOCK_SIZES: Readonly<Record<BlockType, BlockSize>> = {
  q8_0: { elements: 32, bytes: 34 },
  q4_0: { elements: 32, bytes: 18 },
  q4_1: { elements: 32, bytes: 20 },
  q5_0: { elements: 32, bytes: 22 },
  q5_1: { elements: 32, bytes: 24 },
  q4_K: { elements: 256, bytes: 144 },
  q5_K: { elements: 256, bytes: 176 },
  q6_K: { elements: 256, bytes: 210 },
};

/** The names of all block types. */
export const BLOCK_TYPES = Object.keys(BLOCK_SIZES) as readonly BlockType[];

/**
 * The bytes of `elements` numbers in blocks.
 * @throws {RangeError} for an unknown type, and for numbers that do not fill whole blocks
 */
export function blocksByteLength(type: BlockType, elements: number): number {
  const size = BLOCK_SIZES[type] as BlockSize | undefined;
  if (size === undefined) {
    throw new RangeError(
      `expected a block type of ${BLOCK_TYPES.join(', ')}, got '${String(type)}'.`,
    );
  }
  if (!Number.isInteger(elements / size.elements) || elements < 0) {
    throw new RangeError(
      `expected a multiple of ${size.elements} numbers, the block size of ${type}, got ${elements}.`,
    );
  }
  return (elements / size.elements) * size.bytes;
}
