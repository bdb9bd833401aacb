// The numbers that stand for dtypes and operations in the kernels in assembly/.

import type { ReduceDType } from './dtype.js';

export const DTYPE_CODES: Readonly<Record<ReduceDType, number>> = {
  f32: 0,
  f16: 1,
  bf16: 2,
  i32: 3,
  u32: 4,
  u8: 5,
};

/** A mean is a sum that is divided afterwards. */
export const OP_CODES = { sum: 0, mean: 0, max: 1, min: 2 } as const;
