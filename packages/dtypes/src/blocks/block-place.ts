// What the encoders of blocks share: where a block is, and the half-words of its scales.

import { f32ToF16 } from '../float16.js';

/** Where a block begins: its numbers in `values`, and its bytes in `bytes`, which are zeros. */
export interface BlockPlace {
  readonly values: Float32Array;
  readonly from: number;
  readonly bytes: Uint8Array;
  readonly at: number;
}

/** Writes a number as f16. */
export function putHalf(bytes: Uint8Array, at: number, value: number): void {
  const half = f32ToF16(value);
  bytes[at] = half;
  bytes[at + 1] = half >> 8;
}
