// The kernels that read a matrix whose numbers lie in ggml's blocks.

import type { BlockType } from '@shardweave/dtypes/blocks';
import type { View } from '../view.js';

/** The most rows of a in blockDots, for which b is decoded where it is multiplied. */
export const BLOCK_DOTS_ROWS = 5;

/** The most numbers of a row that a device need be able to round in blockDots. */
export const QUANTIZED_ROW = 65536;

/** The calls of the kernels of this file; the comments state what they compute. */
export interface BlocksCalls {
  /**
   * out[i, c] = the number at row r and column firstColumn + c of a matrix [rows, width], rounded
   * once to out's dtype; r is ids[i], or firstRow + i where there are no ids. The matrix lies in
   * blocks of `type`, row by row, from the first byte of `words` (u32) on. out is a dense float
   * [count, columns], and ids are u32 or i32 [count]; an id outside [0, rows) gives zeros. Width,
   * columns and firstColumn are whole blocks. Each device decodes to the same bits. Ids must bind,
   * and two rows of the matrix.
   */
  decodeBlocks: {
    words: View;
    ids: View | undefined;
    out: View;
    type: BlockType;
    rows: number;
    width: number;
    firstRow: number;
    count: number;
    firstColumn: number;
    columns: number;
  };
  /**
   * out[i, j] = the sum over c of a[i, c] * b[j, c], and bias[j], where b is a matrix [n, k] in
   * blocks as those of decodeBlocks, and each number is rounded to a's dtype first. a is [m, k],
   * out [m, n] and bias [n], all dense floats, and m at most BLOCK_DOTS_ROWS. On the cpu device the
   * result has the bits of matmul over the decoded b.
   *
   * With `quantizesRows`, for f32 rows of at most QUANTIZED_ROW numbers, a device may round each 32
   * numbers of a row of a to whole numbers of at most 127 times a scale, and multiply these. The
   * cpu device does.
   */
  blockDots: {
    words: View;
    a: View;
    out: View;
    bias: View | undefined;
    type: BlockType;
    m: number;
    n: number;
    k: number;
    quantizesRows: boolean;
  };
}
