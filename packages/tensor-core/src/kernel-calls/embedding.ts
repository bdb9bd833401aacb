// Kernels that take rows of a table by ids.

import type { View } from '../view.js';

/** The calls of the kernels of this file; the comments state what each computes. */
export interface EmbeddingCalls {
  /**
   * out[i, :] = table[ids[i], :], where ids is u32 or i32 [count]. An id outside [0, rows) gives
   * zeros. Ids must bind.
   */
  embedding: { table: View; ids: View; out: View; rows: number; cols: number; count: number };
  /**
   * dTable[v, :] = the sum of dy[i, :] over all i with ids[i] = v, in order of i. All rows are
   * written. Ids must bind.
   */
  embeddingBackward: {
    ids: View;
    dy: View;
    dTable: View;
    rows: number;
    cols: number;
    count: number;
  };
}
