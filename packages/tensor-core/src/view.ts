// Runs of a device's memory, which kernels read and write. In calls they are dense and row-major
// unless strides are given. "float" is f32, f16 or bf16; views of one call may mix float dtypes
// freely. Strides are in elements.

import type { DType } from '@shardweave/dtypes';

/** An allocation on a device. Contents are undefined until written. */
export interface BackendBuffer {
  /** Unique for the life of the backend; never reused, so it can key a cache of bind groups. */
  readonly id: number;
  /** A multiple of 4, at least 4. */
  readonly byteLength: number;
  /** Whether its allocation is known to have failed: it can only be freed. */
  readonly isLost?: boolean;
}

/** A contiguous run of elements inside a buffer. */
export interface View {
  readonly buffer: BackendBuffer;
  readonly byteOffset: number;
  readonly dtype: DType;
  /** In elements. */
  readonly size: number;
}
