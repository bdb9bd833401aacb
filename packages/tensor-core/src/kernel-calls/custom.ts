// A kernel of a user: see defineOp.

import type { View } from '../view.js';

/**
 * Values of a tensor as a custom kernel's plain twin sees them, row-major, whatever the storage.
 */
export interface PlainArray {
  readonly shape: readonly number[];
  readonly data: Float64Array;
}

/** A user's kernel: see defineOp, which makes and checks it. */
export interface CustomKernel {
  /** Equal names don't make equal kernels: the text does. */
  readonly name: string;
  readonly params: Readonly<Record<string, 'f32' | 'u32'>>;
  /** Declares `element`, with the accessors of each input and the parameters `P`. */
  readonly wgsl: string;
  /** The same on the host: fills out.data. */
  plain(
    inputs: Readonly<Record<string, PlainArray>>,
    out: PlainArray,
    params: Readonly<Record<string, number>>,
  ): void;
}

/** What the kernel `custom` is called with, by its name. */
export interface CustomCalls {
  /**
   * out[i] = element(i) of a user's kernel, in any dtypes, from all of the inputs; out dense. Where
   * the device computes on the host's memory the plain twin runs in its place, in float64, in queue
   * order; what it throws rejects the next read or sync, as a shader error does, or is thrown at
   * once.
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
