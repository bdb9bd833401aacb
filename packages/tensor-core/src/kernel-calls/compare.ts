// Kernels that compare elements, and that choose between them.

import type { View } from '../view.js';

/** A comparison. With NaN all are false but 'ne', which is true. */
export type CompareKind = 'eq' | 'ne' | 'lt' | 'le' | 'gt' | 'ge';

/** The calls of the kernels of this file; the comments state what each computes. */
export interface CompareCalls {
  /**
   * out = 1 where a (kind) b holds, else 0, over `shape` (rank 1 to 6); out is u32 and dense. The
   * operands are as in binary.
   */
  compare: {
    kind: CompareKind;
    a: View;
    b: View;
    out: View;
    shape: readonly number[];
    aStrides: readonly number[];
    bStrides: readonly number[];
  };
  /**
   * out = a where condition (u32 or i32) is not 0, else b, over `shape` (rank 1 to 6); out is
   * dense. The operands are as in binary.
   */
  where: {
    condition: View;
    a: View;
    b: View;
    out: View;
    shape: readonly number[];
    conditionStrides: readonly number[];
    aStrides: readonly number[];
    bStrides: readonly number[];
  };
}
