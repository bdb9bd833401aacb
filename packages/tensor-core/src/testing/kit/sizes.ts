// The sizes and offsets of views that every elementwise case goes through.

import type { DType } from '@shardweave/dtypes';

/** Sizes below and above what vector lanes, words and workgroups hold. */
export const SIZES = [1, 7, 63, 65, 1000] as const;
export const FLOATS = ['f32', 'f16', 'bf16'] as const satisfies readonly DType[];
/**
 * Offsets of inputs, which may start at any element: in the middle of a word, of a vector, of 256
 * bytes. A case with two inputs of a size takes [i] for one and [4 - i] for the other, so that they
 * start at different places.
 */
export const INPUT_OFFSETS = [0, 1, 3, 70, 129] as const;
/** Offsets of outputs, which start at whole words. Again [4 - i] is for the second of a size. */
export const OUTPUT_OFFSETS = [0, 2, 6, 66, 128] as const;
/** [outer, dim, inner, count] of kernels along an axis, over rows and over inner axes. */
export const LINE_SHAPES = [
  [1, 1, 1, 1],
  [3, 7, 1, 9],
  [2, 5, 7, 3],
  [1, 63, 3, 65],
  [20, 65, 1, 2],
  [2, 1000, 1, 7],
  [1, 3, 65, 1],
] as const;
