// A tensor's values on the host, as state dicts and files hold them.

import type { DType, Shape } from '@shardweave/tensor-core';

/** Element types of files that devices have no tensors for. */
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

/** Row-major, little endian. */
export interface HostTensor<D extends FileDType = FileDType> {
  readonly dtype: D;
  readonly shape: Shape;
  /** Exactly the elements' bytes; may be a view of a whole file. */
  readonly data: Uint8Array;
}

/** A tensor whose bytes are read when asked for: of a large model one is in memory at a time. */
export interface LazyTensor<D extends FileDType = FileDType> {
  readonly dtype: D;
  readonly shape: Shape;
  /** Exactly the elements' bytes, as a HostTensor has them. */
  read(): Promise<Uint8Array>;
  /**
   * The bytes of some elements alone, where a part costs less than the whole. A rank loads the part
   * that it has a shard of; a file is written a part at a time.
   */
  readPart?(part: ElementRange): Promise<Uint8Array>;
}

/** `count` elements from `first` on, in the order of their bytes. */
export interface ElementRange {
  readonly first: number;
  readonly count: number;
}

const DEVICE_DTYPES: ReadonlySet<FileDType> = new Set(['f32', 'f16', 'bf16', 'i32', 'u32']);

/** Whether a device can hold the elements. */
export function isDeviceDType(dtype: FileDType): dtype is DType {
  return DEVICE_DTYPES.has(dtype);
}
