// Which rows of the text make up a step, the same on every rank and for every world size. A row is
// T tokens and, as targets, the T tokens one further on.

import type { Order } from '../run-config.js';
import { splitMix32 } from '../seeded-random.js';

/** The token at which row `row` (0 to B - 1) of step `step` (from 0) starts. */
export type RowOrder = (step: number, row: number) => number;

export interface RowOrderOptions {
  /** Tokens of the whole text, at least seq + 2. */
  readonly tokenCount: number;
  readonly batch: number;
  readonly seq: number;
  readonly seed: number;
}

/**
 * `sequential`: rows follow one another through the text and wrap around. `shuffle`: the text is cut
 * into rows, which come in another order each epoch, made from the seed alone.
 */
export function rowOrder(order: Order, options: RowOrderOptions): RowOrder {
  const { tokenCount, batch, seq } = options;
  if (order === 'sequential') {
    return (step, row) => ((step * batch + row) * seq) % (tokenCount - seq - 1);
  }
  const rowsOfEpoch = Math.floor((tokenCount - 1) / seq);
  let epoch = -1;
  let permutation = new Uint32Array(0);
  return (step, row) => {
    const index = step * batch + row;
    if (Math.floor(index / rowsOfEpoch) !== epoch) {
      epoch = Math.floor(index / rowsOfEpoch);
      permutation = permute(rowsOfEpoch, options.seed, epoch);
    }
    return permutation[index % rowsOfEpoch]! * seq;
  };
}

/** The rows of a step's micro-step that belong to a rank: [first, end) out of B. */
export function rowsOf(options: {
  readonly batch: number;
  readonly ranks: number;
  readonly rank: number;
  readonly gradAccum: number;
  readonly microStep: number;
}): { readonly first: number; readonly end: number } {
  const rows = options.batch / (options.ranks * options.gradAccum);
  const first = (options.rank * options.batch) / options.ranks + options.microStep * rows;
  return { first, end: first + rows };
}

/** Fisher and Yates' shuffle of 0 to n - 1. */
function permute(n: number, seed: number, epoch: number): Uint32Array<ArrayBuffer> {
  const next = splitMix32(seed, epoch);
  const order = Uint32Array.from({ length: n }, (_, i) => i);
  for (let i = n - 1; i > 0; i--) {
    const j = Math.floor((next() / 2 ** 32) * (i + 1));
    [order[i], order[j]] = [order[j]!, order[i]!];
  }
  return order;
}
