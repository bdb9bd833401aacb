// The element types of a file's tensors, by the format's numbers.

import { byteSize } from '@shardweave/dtypes';
import { BLOCK_SIZES, BLOCK_TYPES, type BlockType } from '@shardweave/dtypes/blocks';
import type { SourceType } from '../tensor-types.js';

/** The type of a tensor's numbers in a file: plain floats, or ggml's blocks. */
export type StoredType = SourceType | BlockType;

/** The names of all types that are read. */
export const STORED_TYPES: readonly StoredType[] = ['f32', 'f16', 'bf16', ...BLOCK_TYPES];

/** ggml's names of its types, those that are not read too, so that an error can name them. */
const NAMES: Readonly<Record<number, string>> = {
  ...{ 0: 'f32', 1: 'f16', 2: 'q4_0', 3: 'q4_1', 6: 'q5_0', 7: 'q5_1', 8: 'q8_0', 9: 'q8_1' },
  ...{ 10: 'q2_K', 11: 'q3_K', 12: 'q4_K', 13: 'q5_K', 14: 'q6_K', 15: 'q8_K' },
  ...{ 16: 'iq2_xxs', 17: 'iq2_xs', 18: 'iq3_xxs', 19: 'iq1_s', 20: 'iq4_nl', 21: 'iq3_s' },
  ...{ 22: 'iq2_s', 23: 'iq4_xs', 24: 'i8', 25: 'i16', 26: 'i32', 27: 'i64', 28: 'f64' },
  ...{ 29: 'iq1_m', 30: 'bf16', 34: 'tq1_0', 35: 'tq2_0', 39: 'mxfp4', 40: 'nvfp4' },
};

/** The name of a type by its number, such as 'q4_K'; of an unknown one 'type 99'. */
export function typeName(id: number): string {
  return NAMES[id] ?? `type ${id}`;
}

export function isStoredType(name: string): name is StoredType {
  return (STORED_TYPES as readonly string[]).includes(name);
}

export function isBlockType(type: StoredType): type is BlockType {
  return Object.hasOwn(BLOCK_SIZES, type);
}

/** The block of a type; a plain number is a block of one. */
export function blockOf(type: StoredType): (typeof BLOCK_SIZES)[BlockType] {
  return isBlockType(type) ? BLOCK_SIZES[type] : { elements: 1, bytes: byteSize(type) };
}
