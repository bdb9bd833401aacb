// Kernels that take elements by indices, and those that find indices.

import type { View } from '../view.js';

/**
 * What each kernel that reads or finds indices is called with, by its name; the comments state what
 * it computes.
 */
export interface IndexingCalls {
  /**
   * out[o, n, i] = x[o, ids[o, n, i], i] of x [outer, dim, inner], ids (u32 or i32) and out [outer,
   * count, inner], of any dtype; an id outside [0, dim) gives 0.
   */
  gather: {
    x: View;
    ids: View;
    out: View;
    outer: number;
    dim: number;
    inner: number;
    count: number;
  };
  /**
   * dx[o, d, i] = sum over n with ids[o, n, i] = d of dy[o, n, i], in order of n, in f32; all is
   * written.
   */
  gatherBackward: {
    ids: View;
    dy: View;
    dx: View;
    outer: number;
    dim: number;
    inner: number;
    count: number;
  };
  /**
   * out (i32 or u32) [outer, count, inner]: indices of the largest along dim of x (float), in
   * descending order, the first of equal ones first; NaN is the largest, and zeros of both signs
   * are equal.
   */
  topK: { x: View; out: View; outer: number; dim: number; inner: number; count: number };
  /**
   * out[i, :] = table[ids[i], :]; ids u32 or i32 [count]; an id outside [0, rows) gives zeros. Ids
   * must bind.
   */
  embedding: { table: View; ids: View; out: View; rows: number; cols: number; count: number };
  /**
   * dTable[v, :] = sum over i with ids[i] = v of dy[i, :], in order of i; all rows are written. Ids
   * must bind.
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
