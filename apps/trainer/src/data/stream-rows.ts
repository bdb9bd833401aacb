// Rows of a text: windows of T tokens that follow each other without gaps, whatever they cut
// through.

import { rowOrder } from './row-order.js';
import { NO_TARGET, type RowOrderName, type RowSource } from './rows.js';
import type { TokenFile } from './token-file.js';

export interface StreamOptions {
  /** The part of the text that rows are taken from: tokens [first, end). */
  readonly first: number;
  readonly end: number;
  readonly batch: number;
  readonly seq: number;
  readonly seed: number;
  readonly order: RowOrderName;
}

/**
 * Makes the rows. 'in turn' takes each target once, so the last row may be shorter; other orders
 * leave the tokens of such a row out.
 */
export function streamRows(file: TokenFile, options: StreamOptions): RowSource {
  const { first, end, seq, batch, order } = options;
  const all = end - first - 1;
  const isInTurn = order === 'in turn';
  const startOf = rowOrder(order, { ...options, tokenCount: end - first });
  const placeOf = (index: number) => first + startOf(Math.floor(index / batch), index % batch);
  const lengthOf = (index: number) => (isInTurn ? Math.min(seq, all - index * seq) : seq);
  return {
    isPacked: false,
    numRows: isInTurn ? Math.ceil(all / seq) : Math.floor(all / seq),
    numTargets: async (index) => lengthOf(index), // every token of a text has one after it
    originOf: (index) => ({ part: 0, unit: 'token', numbers: [placeOf(index)] }),
    fill: async (index, { tokens, targets }, at) => {
      const start = placeOf(index);
      const length = lengthOf(index);
      const read = await file.read(start, length + 1);
      tokens.set(read.subarray(0, length), at * seq);
      targets.set(read.subarray(1), at * seq);
      targets.fill(NO_TARGET, at * seq + length, (at + 1) * seq);
    },
  };
}
