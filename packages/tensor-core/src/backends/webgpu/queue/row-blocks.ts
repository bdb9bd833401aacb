// How kernels over operands that are larger than a binding are cut: into blocks of rows. Elements
// that are computed one by one are rows of one element.

import type { View } from '../../../view.js';
import { elementsPerWord } from '../kernel/kernel.js';
import { type KernelContext, sliceView } from './context.js';

/** The rows of several views, which are cut together. */
export interface RowBlocks {
  /** The elements of a row of each view, 0 where the view is bound as a whole. */
  readonly strides: readonly number[];
  readonly rows: number;
  /** The op that errors name. */
  readonly op: string;
  /** The number of rows at whose multiples blocks begin. The default is 1. */
  readonly multiple?: number;
  /** The views that are written, the last one by default. Blocks begin at whole words of them. */
  readonly areWritten?: readonly boolean[];
  /** Called with each row by itself where not even one binds. The default is an error. */
  cutRow?(views: readonly View[]): void;
}

/** Calls `body` with blocks of rows whose views bind at once. */
export function eachRowBlock(
  ctx: KernelContext,
  views: readonly View[],
  call: RowBlocks,
  body: (parts: readonly View[], firstRow: number, numRows: number) => void,
): void {
  const { strides, rows, op, cutRow } = call;
  if (ctx.fits(views)) {
    body(views, 0, rows);
    return;
  }
  const rowAt = (row: number) =>
    views.map((view, i) => {
      const stride = strides[i]!;
      return stride === 0 ? view : sliceView(view, row * stride, stride);
    });
  if (cutRow !== undefined && !ctx.fits(rowAt(0))) {
    for (let row = 0; row < rows; row++) {
      cutRow(rowAt(row));
    }
    return;
  }
  const { areWritten = views.map((_, i) => i === views.length - 1) } = call;
  const areWords = views.every(
    ({ dtype }, i) => !areWritten[i] || strides[i]! % elementsPerWord(dtype) === 0,
  );
  const multiple = Math.min(rows, Math.max(call.multiple ?? 1, areWords ? 1 : 2));
  const steps = views.map(({ dtype }, i) =>
    strides[i] === 0 ? rows : ctx.windowUnits([dtype], strides[i]!, { multiple, op }),
  );
  const step = Math.min(...steps);
  for (let first = 0; first < rows; first += step) {
    const numRows = Math.min(step, rows - first);
    const parts = views.map((view, i) => {
      const start = first * strides[i]!;
      // The last row may be shorter than its stride: gate and up may lie side by side in each row.
      const isToEnd = strides[i] === 0 || first + numRows === rows;
      return sliceView(view, start, isToEnd ? view.size - start : numRows * strides[i]!);
    });
    body(parts, first, numRows);
  }
}

/**
 * Calls `body` with ranges of elements whose views bind at once, as many elements as the last view
 * has. Ranges begin at whole words.
 */
export function eachRange(
  ctx: KernelContext,
  views: readonly View[],
  op: string,
  body: (parts: readonly View[], start: number, length: number) => void,
): void {
  const blocks = { strides: views.map(() => 1), rows: views.at(-1)!.size, op, multiple: 4 };
  eachRowBlock(ctx, views, blocks, body);
}
