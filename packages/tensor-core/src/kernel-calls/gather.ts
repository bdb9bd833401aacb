// Kernels that take elements along an axis by indices.

import type { View } from '../view.js';

/** The calls of the kernels of this file; the comments state what each computes. */
export interface GatherCalls {
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
}
