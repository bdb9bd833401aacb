// Runs of a device's memory, which kernels read and write. In calls they are dense and row-major
// unless strides are given. "float" is f32, f16 or bf16; views of one call may mix float dtypes
// freely. Strides are in elements.

import type { DType } from '@shardweave/dtypes';

/** An allocation on a device, whose contents are undefined until they are written. */
export interface BackendBuffer {
  /** A number that the backend never uses again, so that it can key a cache of bind groups. */
  readonly id: number;
  /** The length in bytes, a multiple of 4 and at least 4. */
  readonly byteLength: number;
  /** Whether the allocation is known to have failed, after which the buffer can only be freed. */
  readonly isLost?: boolean;
}

/** A contiguous run of elements inside a buffer. */
export interface View {
  readonly buffer: BackendBuffer;
  readonly byteOffset: number;
  readonly dtype: DType;
  /** The number of elements. */
  readonly size: number;
}
