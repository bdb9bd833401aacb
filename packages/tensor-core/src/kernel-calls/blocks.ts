// The kernel that reads a matrix whose numbers lie in ggml's blocks.

import type { BlockType } from '@shardweave/dtypes/blocks';
import type { View } from '../view.js';

/** The call of the kernel of this file; the comment states what it computes. */
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
}
