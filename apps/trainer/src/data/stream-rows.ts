// Rows of a text: windows of T tokens that follow each other without gap, whatever they cut through.

import { COUNTED } from './document.js';
import { rowOrder } from './row-order.js';
import type { RowOrderName, RowSource } from './rows.js';
import type { TokenFile } from './token-file.js';

export interface StreamOptions {
  /** The part of the text that rows are made of: tokens [first, end). */
  readonly first: number;
  readonly end: number;
  readonly batch: number;
  readonly seq: number;
  readonly seed: number;
  readonly order: RowOrderName;
}

export function streamRows(file: TokenFile, options: StreamOptions): RowSource {
  const { first, end, seq, batch } = options;
  const { order } = options;
  const startOf =
    order === 'in turn'
      ? (step: number, row: number) => (step * batch + row) * seq
      : rowOrder(order, { ...options, tokenCount: end - first });
  return {
    isPacked: false,
    numRows: Math.floor((end - first - 1) / seq),
    numTargets: async () => seq, // every token of a text has one after it
    fill: async (index, { tokens, targets }, at) => {
      const start = first + startOf(Math.floor(index / batch), index % batch);
      const read = (await file.read(start, seq + 1)).map((token) => token & ~COUNTED);
      tokens.set(read.subarray(0, seq), at * seq);
      targets.set(read.subarray(1), at * seq);
    },
  };
}
