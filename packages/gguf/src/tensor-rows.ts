// Reads a tensor's rows in the order and direction that its file wants, some at a time.

import { byteSize } from '@shardweave/dtypes';
import type { SourceType } from './tensor-types.js';

/** How the rows of a matrix are taken. */
export interface RowPlan {
  readonly rows: number;
  readonly columns: number;
  /** The row of the source that belongs at a row of the file. Default: the same. */
  readonly rowAt?: (row: number) => number;
  /** Whether the source is [columns, rows]. Default false. */
  readonly isTransposed?: boolean;
}

/** The row of the file at which each row of the source is: the table of `rowAt` the other way. */
export function fileRowsOf(plan: RowPlan & Required<Pick<RowPlan, 'rowAt'>>): Uint32Array {
  const { rows, rowAt } = plan;
  const fileRows = new Uint32Array(rows);
  for (let row = 0; row < rows; row++) {
    fileRows[rowAt(row)] = row;
  }
  return fileRows;
}

/** About how many elements are converted at a time. */
const PIECE_ELEMENTS = 2 ** 20;

/** The source's bytes in whole rows of the plan; views of the source where no row moves. */
export function* rowPieces(
  source: Uint8Array,
  { plan, type }: { readonly plan: RowPlan; readonly type: SourceType },
): Generator<Uint8Array, void, undefined> {
  const { rows, columns, rowAt, isTransposed = false } = plan;
  const size = byteSize(type);
  const rowBytes = columns * size;
  const step = Math.max(1, Math.floor(PIECE_ELEMENTS / columns));
  for (let first = 0; first < rows; first += step) {
    const count = Math.min(step, rows - first);
    if (isTransposed) {
      yield transposedRows(source, { plan, first, count, size });
    } else if (rowAt === undefined) {
      yield source.subarray(first * rowBytes, (first + count) * rowBytes);
    } else {
      const piece = new Uint8Array(count * rowBytes);
      for (let row = 0; row < count; row++) {
        const from = rowAt(first + row) * rowBytes;
        piece.set(source.subarray(from, from + rowBytes), row * rowBytes);
      }
      yield piece;
    }
  }
}

/**
 * Rows [first, first + count) of a source that has them as columns, read along the source's own
 * rows.
 */
function transposedRows(
  source: Uint8Array,
  place: {
    readonly plan: RowPlan;
    readonly first: number;
    readonly count: number;
    readonly size: number;
  },
): Uint8Array {
  const { plan, first, count, size } = place;
  const { rows, columns } = plan;
  const piece = new Uint8Array(count * columns * size);
  for (let column = 0; column < columns; column++) {
    const from = (column * rows + first) * size;
    for (let row = 0; row < count; row++) {
      const to = (row * columns + column) * size;
      for (let byte = 0; byte < size; byte++) {
        piece[to + byte] = source[from + row * size + byte]!;
      }
    }
  }
  return piece;
}
