// The kernel of an op that a user defines by defineOp.

import type { View } from '../view.js';

/**
 * The values of a tensor as a custom op's plain function sees them: row-major float64, whatever the
 * tensor's dtype.
 */
export interface PlainArray {
  readonly shape: readonly number[];
  readonly data: Float64Array;
}

/** The kernel of a custom op, which defineOp makes and checks. */
export interface CustomKernel {
  /** The op's name. Two kernels of one name may differ in their text. */
  readonly name: string;
  readonly params: Readonly<Record<string, 'f32' | 'u32'>>;
  /** WGSL that declares `element(i)`. It may use the accessors of inputs and the parameters `P`. */
  readonly wgsl: string;
  /** The same function on the host, for all elements: it fills out.data. */
  plain(
    inputs: Readonly<Record<string, PlainArray>>,
    out: PlainArray,
    params: Readonly<Record<string, number>>,
  ): void;
}

/** What the kernel `custom` is called with; its comment states what it computes. */
export interface CustomCalls {
  /**
   * out[i] = element(i) of a user's kernel, in any dtypes, where element(i) may read all of the
   * inputs; out is dense. A device that computes in the host's memory runs `plain` instead, in
   * float64 and in queue order. What `plain` throws is thrown at once, or rejects the next read or
   * sync as a shader error does.
   */
  custom: {
    kernel: CustomKernel;
    inputs: Readonly<Record<string, View>>;
    out: View;
    /** The shape of each input by its name, and that of 'out'. */
    shapes: Readonly<Record<string, readonly number[]>>;
    params: Readonly<Record<string, number>>;
  };
}
