// Rows of several parts in turn, so that at any time each part has had its share of them.

import type { RowSource } from './rows.js';

/** A part's rows, and its part of all rows, from 0 to 1. */
export interface MixedPart {
  readonly rows: RowSource;
  readonly share: number;
}

/** The row of a mixture: row `row` of part `part`. */
interface Place {
  readonly part: number;
  readonly row: number;
}

/** The rows between places that are kept, from which those behind them are counted. */
const KEPT_EVERY = 2 ** 12;

/**
 * The order of a mixture's rows, without end: each is of the part whose number of rows lags most
 * behind its share of all until then, and of the first such part. It depends on the shares alone,
 * as in Megatron-LM: 0.7 and 0.3 are 0 1 0 0 0 1 0 0 1 0, and again so.
 */
export class MixedOrder {
  readonly #shares: readonly number[];
  /** The rows of each part before the rows KEPT_EVERY, twice as many, and so on. */
  readonly #kept: Float64Array[] = [];
  /** The row that was placed last, and the rows of each part up to it and with it. */
  #last = -1;
  #counts: Float64Array;
  #part = 0;

  constructor(shares: readonly number[]) {
    this.#shares = shares;
    this.#counts = new Float64Array(shares.length);
    this.#kept.push(this.#counts.slice());
  }

  /** The place of a row; those that follow each other are found at once. */
  at(index: number): Place {
    if (index < this.#last) {
      this.#goBack(index);
    }
    while (this.#last < index) {
      this.#next();
    }
    return { part: this.#part, row: this.#counts[this.#part]! - 1 };
  }

  #goBack(index: number): void {
    const kept = Math.floor(index / KEPT_EVERY);
    this.#counts = this.#kept[kept]!.slice();
    this.#last = kept * KEPT_EVERY - 1;
  }

  #next(): void {
    const index = ++this.#last;
    if (index % KEPT_EVERY === 0) {
      this.#kept[index / KEPT_EVERY] ??= this.#counts.slice();
    }
    const shares = this.#shares;
    const counts = this.#counts;
    let [chosen, most] = [0, shares[0]! * (index + 1) - counts[0]!];
    for (let part = 1; part < shares.length; part++) {
      const lag = shares[part]! * (index + 1) - counts[part]!;
      if (lag > most) {
        [chosen, most] = [part, lag];
      }
    }
    counts[chosen]!++;
    this.#part = chosen;
  }
}

/**
 * The rows of a mixture. An epoch ends with the last row before the first part would begin anew, so
 * that it takes no row twice.
 * @param options.seq the tokens of a row
 */
export function mixedRows(
  parts: readonly MixedPart[],
  { seq }: { readonly seq: number },
): RowSource {
  const order = new MixedOrder(parts.map(({ share }) => share));
  const isPacked = parts.some(({ rows }) => rows.isPacked);
  const placed = (index: number) => {
    const { part, row } = order.at(index);
    return { rows: parts[part]!.rows, row };
  };
  let numRows = 0;
  for (let { rows, row } = placed(0); row < rows.numRows; { rows, row } = placed(numRows)) {
    numRows++;
  }
  return {
    isPacked,
    numRows,
    numTargets: (index) => {
      const { rows, row } = placed(index);
      return rows.numTargets(row);
    },
    originOf: (index) => {
      const { part, row } = order.at(index);
      return { ...parts[part]!.rows.originOf(row), part };
    },
    fill: async (index, into, at) => {
      const { rows, row } = placed(index);
      await rows.fill(row, into, at);
      if (isPacked && !rows.isPacked) {
        // A row of a text beside rows of documents is one document.
        const own = into.positions!.subarray(at * seq, (at + 1) * seq);
        own.set(own.map((_, i) => i));
      }
    },
  };
}
