// Kernels that take elements by indices, and those that find indices.

import type { View } from '../view.js';

/**
 * What each kernel that reads or finds indices is called with, by its name; the comments state what
 * it computes.
 */
export interface IndexingCalls {
  /**
   * out[o, n, i] = x[o, ids[o, n, i], i], where x is [outer, dim, inner] of any dtype, and ids (u32
   * or i32) and out are [outer, count, inner]. An id outside [0, dim) gives 0.
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
   * dx[o, d, i] = the sum of dy[o, n, i] over all n with ids[o, n, i] = d, in order of n, in f32.
   * A device may first sum runs of the terms of one d that follow each other, but always the same
   * ones for equal ids. All elements of dx are written.
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
   * out (i32 or u32) [outer, count, inner] gets the indices of the largest elements along dim of x
   * (float), in descending order of the elements, with the lower index first among equal ones. NaN
   * is the largest, and zeros of both signs are equal.
   */
  topK: { x: View; out: View; outer: number; dim: number; inner: number; count: number };
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
