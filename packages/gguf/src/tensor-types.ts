// How numbers are stored in a file: as plain floats, or in blocks of 32 that share a scale.

import { fromF32Array, toF32Array } from '@shardweave/dtypes';
import { BlockNumberError, type BlockType, encodeBlocks } from '@shardweave/dtypes/blocks';
import { GgufModelError } from './errors.js';

/** The type in which the matrices of a file are stored. */
export type GgufType = 'f32' | 'f16' | 'bf16' | 'q8_0';

/** The float types of the files that models come in. */
export type SourceType = 'f32' | 'f16' | 'bf16';

interface TypeInfo {
  /** The format's number for the type. */
  readonly id: number;
  /** The format's number for a file whose matrices have the type (`general.file_type`). */
  readonly fileType: number;
  readonly blockElements: number;
  readonly blockBytes: number;
}

export const TYPE_INFO: Readonly<Record<GgufType, TypeInfo>> = {
  f32: { id: 0, fileType: 0, blockElements: 1, blockBytes: 4 },
  f16: { id: 1, fileType: 1, blockElements: 1, blockBytes: 2 },
  bf16: { id: 30, fileType: 32, blockElements: 1, blockBytes: 2 },
  q8_0: { id: 8, fileType: 7, blockElements: 32, blockBytes: 34 },
};

/** The names of all tensor types that this package knows. */
export const GGUF_TYPES = Object.keys(TYPE_INFO) as readonly GgufType[];

/** The bytes of `elements` elements, which are a whole number of blocks. */
export function storedBytes(type: GgufType, elements: number): number {
  const { blockElements, blockBytes } = TYPE_INFO[type];
  return (elements / blockElements) * blockBytes;
}

/**
 * Encodes a piece of a tensor, in whole rows, as its file stores it. f16 and bf16 round to nearest
 * even; blocks are quantized as llama.cpp's reference does, to the same bytes.
 * @throws {GgufModelError} for a number that the type can't hold and would turn into infinity
 */
export function encode(
  bytes: Uint8Array,
  types: { readonly name: string; readonly from: SourceType; readonly to: GgufType },
): Uint8Array {
  const { name, from, to } = types;
  if (from === to) {
    return bytes;
  }
  const values = toF32Array(bytes, from);
  if (to === 'f32') {
    return new Uint8Array(values.buffer);
  }
  if (to === 'q8_0') {
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
