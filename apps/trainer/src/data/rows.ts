// What rows come from, a text or documents: the seam under a data set.

import type { Order } from '../run-config.js';

/** A target that does not count: beyond every vocabulary. */
export const NO_TARGET = 0xffff_ffff;

/** The order of the rows: what is evaluated takes each once, as it stands in the file. */
export type RowOrderName = Order | 'in turn';

/** [rows, seq] each. */
export interface RowArrays {
  readonly tokens: Uint32Array;
  /** One token on, or NO_TARGET. */
  readonly targets: Uint32Array;
  /**
   * Which document of its row a token belongs to, and its place there. Undefined: rows are one
   * text.
   */
  readonly segments?: Uint32Array;
  readonly positions?: Uint32Array;
}

/** Rows by number, on and on through the epochs. Each is the same whoever asks, and when. */
export interface RowSource {
  /** Whether rows have segments and positions. */
  readonly isPacked: boolean;
  /** Rows of the first epoch. */
  readonly numRows: number;
  /** Targets of a row that count. */
  numTargets(index: number): Promise<number>;
  /** Writes row `index` as row `at` of the arrays, which hold zeros there. */
  fill(index: number, into: RowArrays, at: number): Promise<void>;
}
