// How numbers are stored in a file: as plain floats, or in ggml's blocks, which share a scale.

import { fromF32Array, toF32Array } from '@shardweave/dtypes';
import {
  BLOCK_SIZES,
  BLOCK_TYPES,
  BlockNumberError,
  type BlockType,
  encodeBlocks,
} from '@shardweave/dtypes/blocks';
import { GgufModelError } from './errors.js';

/** The float types of the files that models come in. */
export type SourceType = 'f32' | 'f16' | 'bf16';

/** The type in which one tensor of a file is stored. */
export type GgufTensorType = SourceType | BlockType;

interface TypeInfo {
  /** The format's number for the type. */
  readonly id: number;
  readonly blockElements: number;
  readonly blockBytes: number;
}

function blockInfo(id: number, type: BlockType): TypeInfo {
  const { elements, bytes } = BLOCK_SIZES[type];
  return { id, blockElements: elements, blockBytes: bytes };
}

export const TYPE_INFO: Readonly<Record<GgufTensorType, TypeInfo>> = {
  f32: { id: 0, blockElements: 1, blockBytes: 4 },
  f16: { id: 1, blockElements: 1, blockBytes: 2 },
  bf16: { id: 30, blockElements: 1, blockBytes: 2 },
  q8_0: blockInfo(8, 'q8_0'),
  q4_0: blockInfo(2, 'q4_0'),
  q4_1: blockInfo(3, 'q4_1'),
  q5_0: blockInfo(6, 'q5_0'),
  q5_1: blockInfo(7, 'q5_1'),
  q4_K: blockInfo(12, 'q4_K'),
  q5_K: blockInfo(13, 'q5_K'),
  q6_K: blockInfo(14, 'q6_K'),
};

/** The names of all types that are written and read. */
export const TENSOR_TYPES = Object.keys(TYPE_INFO) as readonly GgufTensorType[];

const NAMES: readonly string[] = TENSOR_TYPES;
const BLOCKS: readonly string[] = BLOCK_TYPES;

export function isTensorType(name: string): name is GgufTensorType {
  return NAMES.includes(name);
}

/** Whether the type keeps numbers in blocks. */
export function isBlockType(type: GgufTensorType): type is BlockType {
  return BLOCKS.includes(type);
}

/** The bytes of `elements` elements, which are a whole number of blocks. */
export function storedBytes(type: GgufTensorType, elements: number): number {
  const { blockElements, blockBytes } = TYPE_INFO[type];
  return (elements / blockElements) * blockBytes;
}

/**
 * Encodes a piece of a tensor, in whole rows, as its file stores it. f16 and bf16 round to nearest
 * even.
 * @throws {GgufModelError} for a number that the type can't hold and would turn into infinity
 */
export function encode(
  bytes: Uint8Array,
  types: { readonly name: string; readonly from: SourceType; readonly to: GgufTensorType },
): Uint8Array {
  const { name, from, to } = types;
  if (from === to) {
    return bytes;
  }
  const values = toF32Array(bytes, from);
  if (to === 'f32') {
    return new Uint8Array(values.buffer);
  }
  if (isBlockType(to)) {
    return encodedBlocks(values, { name, to });
  }
  const outside = to === 'f16' ? values.find((value) => !(Math.abs(value) < F16_BELOW)) : undefined;
  if (outside !== undefined) {
    throw outOfRange(outside, { name, to, below: F16_BELOW });
  }
  return fromF32Array(values, to);
}

/**
 * Numbers below this round to the largest f16 or less; this one and those above round to infinity.
 */
const F16_BELOW = 65_520;

function encodedBlocks(
  values: Float32Array,
  { name, to }: { readonly name: string; readonly to: BlockType },
): Uint8Array {
  try {
    return encodeBlocks(to, values);
  } catch (cause) {
    if (cause instanceof BlockNumberError) {
      throw outOfRange(cause.found, { name, to, below: cause.below });
    }
    throw cause;
  }
}

function outOfRange(
  found: number,
  { name, to, below }: { readonly name: string; readonly to: string; readonly below: number },
): GgufModelError {
  return new GgufModelError(
    `${name}: expected numbers below ${below}, as ${to} holds them, got ${found}. Write it as bf16 or f32.`,
  );
}
