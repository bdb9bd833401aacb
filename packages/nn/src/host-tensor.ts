// The values of a tensor on the host, as state dicts and files hold them.

import type { BlockType } from '@shardweave/dtypes/blocks';
import { type DType, isFloat, type Shape } from '@shardweave/tensor-core';

/** The element types that files can have, including some that no device has tensors of. */
export type FileDType =
  | DType
  | 'f64'
  | 'i64'
  | 'u64'
  | 'i16'
  | 'u16'
  | 'i8'
  | 'u8'
  | 'bool'
  | 'f8_e4m3'
  | 'f8_e5m2';

/** A tensor's values in host memory, row-major and little endian. */
export interface HostTensor<D extends FileDType = FileDType> {
  readonly dtype: D;
  readonly shape: Shape;
  /**
   * Exactly the bytes of the elements. It may be a view of a larger array, such as a whole file.
   */
  readonly data: Uint8Array;
}

/**
 * A tensor whose bytes are read when they are asked for, so that one tensor of a large model at a
 * time is in memory.
 */
export interface LazyTensor<D extends FileDType = FileDType> {
  readonly dtype: D;
  readonly shape: Shape;
  /** Reads exactly the bytes of the elements, in the form that HostTensor has. */
  read(): Promise<Uint8Array>;
  /**
   * Reads the bytes of some elements. It exists where reading a part costs less than reading the
   * whole. A rank loads only the part that its shard needs, and files are written part by part. A
   * reader may put the bytes into `into`, which has room for them, and return that part of it.
   */
  readPart?(part: ElementRange, into?: Uint8Array): Promise<Uint8Array>;
  /** The blocks that its numbers come from; a parameter that rests in the same type takes them. */
  readonly blocks?: LazyBlocks;
}

/** A matrix in ggml's blocks, whose words are read when they are asked for. */
export interface LazyBlocks {
  readonly type: BlockType;
  /** The words, row by row. */
  readonly words: LazyTensor<'u32'>;
}

/** `count` elements from `first` on, in the order of their bytes. */
export interface ElementRange {
  readonly first: number;
  readonly count: number;
}

const DEVICE_DTYPES: ReadonlySet<FileDType> = new Set(['f32', 'f16', 'bf16', 'i32', 'u32']);

/** Whether devices have tensors of this element type. */
export function isDeviceDType(dtype: FileDType): dtype is DType {
  return DEVICE_DTYPES.has(dtype);
}

/**
 * Whether values of one element type may be loaded into a tensor of another: floats that devices
 * have into floats, by value, and anything else only into the same type.
 */
export function isConvertible(from: FileDType, into: DType): from is DType {
  return isDeviceDType(from) && (from === into || (isFloat(from) && isFloat(into)));
}
