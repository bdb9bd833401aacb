// Kernels that reduce an axis. It is enough that some elements of a line bind.

import type { View } from '../view.js';

/** The calls of the kernels of this file; the comments state what each computes. */
export interface ReduceCalls {
  /**
   * out [outer, inner] = the sum, mean or extremum of x [outer, dim, inner] along dim, of floats.
   */
  reduce: {
    kind: 'sum' | 'mean' | 'max' | 'min';
    x: View;
    out: View;
    outer: number;
    dim: number;
    inner: number;
  };
  /**
   * The gradient of max or min, which splits dy evenly among the elements of x that equal y. A line
   * whose y is NaN has no such element, and its gradient is NaN.
   */
  extremumBackward: {
    x: View; // [outer, dim, inner]
    y: View; // [outer, inner]
    dy: View; // [outer, inner]
    out: View; // [outer, dim, inner]
    outer: number;
    dim: number;
    inner: number;
  };
}
