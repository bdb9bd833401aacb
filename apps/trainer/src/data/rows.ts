// The seam under a data set: where its rows come from, a text or documents.

import type { Order } from '../run-config.js';

/** A target that does not count: it lies beyond every vocabulary. */
export const NO_TARGET = 0xffff_ffff;

/**
 * The order of the rows. 'in turn', for evaluations, takes each row once, in the order of the file.
 */
export type RowOrderName = Order | 'in turn';

/** [rows, seq] each. */
export interface RowArrays {
  readonly tokens: Uint32Array;
  /** The token after each token, or NO_TARGET. */
  readonly targets: Uint32Array;
  /**
   * The document of its row that a token belongs to, and its place in that. Undefined: rows are one
   * text.
   */
  readonly segments?: Uint32Array;
  readonly positions?: Uint32Array;
}

/** Where a row is in the data. */
export interface RowOrigin {
  /** The part of a mixture, from 0. */
  readonly part: number;
  readonly unit: 'document' | 'token' | 'row';
  /**
   * The numbers of its documents, as Entry has them, each once; the first token of a row of a text,
   * from 0; or the number of a module's own row.
   */
  readonly numbers: readonly number[];
}

/**
 * Rows by number, without end through the epochs. A row depends only on its number.
 */
export interface RowSource {
  /** Whether rows have segments and positions. */
  readonly isPacked: boolean;
  /** The number of rows of the first epoch. */
  readonly numRows: number;
  /** The number of targets of a row that count. */
  numTargets(index: number): Promise<number>;
  originOf(index: number): RowOrigin;
  /** Writes row `index` as row `at` of the arrays, which hold zeros there. */
  fill(index: number, into: RowArrays, at: number): Promise<void>;
}
