// From the rows of tokens to one row a document. It takes no kernel of its own: a mean is a product
// with a small matrix of weights, and one token of each document is a lookup in the table of all
// rows.

import { cast, embedding, matmul, reshape, type Tensor } from '@shardweave/tensor-core';
import type { DocumentSpan } from './document-rows.js';

/**
 * How a document's rows become one: their mean, the first ('cls': a BERT's token of that name), or
 * the last, which alone has seen the whole document where attention is causal.
 */
export type Pooling = 'mean' | 'cls' | 'last';

export const POOLINGS = ['mean', 'cls', 'last'] as const satisfies readonly Pooling[];

/** One row of hidden [batch, seq, width] for each document, f32 [documents, width]. */
export function pool(hidden: Tensor, spans: readonly DocumentSpan[], pooling: Pooling): Tensor {
  return pooling === 'mean'
    ? weightedRows(hidden, spans, ({ length }) => 1 / length)
    : cast(tokenRows(hidden, spans, pooling), 'f32');
}

/** The row of hidden [batch, seq, width] that is each document's first or last token's. */
export function tokenRows(
  hidden: Tensor,
  spans: readonly DocumentSpan[],
  pooling: Exclude<Pooling, 'mean'>,
): Tensor {
  const [, seq, width] = hidden.shape as [number, number, number];
  const rows = spans.map(({ row, start, length }) => {
    return row * seq + start + (pooling === 'cls' ? 0 : length - 1);
  });
  return rowsAt(reshape(hidden, [-1, width]), rows);
}

/**
 * The sum of each document's rows times its weight, f32 [documents, width], by a product for each
 * row of the batch: [documents of a row, seq] x [seq, width]. Rows with fewer documents than others
 * get rows of zeros, which are left out.
 */
export function weightedRows(
  hidden: Tensor,
  spans: readonly DocumentSpan[],
  weightOf: (span: DocumentSpan) => number,
): Tensor {
  const [batch, seq, width] = hidden.shape as [number, number, number];
  const counts = new Array<number>(batch).fill(0);
  const places = spans.map((span) => ({ ...span, place: counts[span.row]!++ }));
  const most = Math.max(...counts);
  const weights = new Float32Array(batch * most * seq);
  for (const span of places) {
    const { row, place, start, length } = span;
    const first = (row * most + place) * seq + start;
    weights.fill(weightOf(span), first, first + length);
  }
  const factor = hidden.device.tensor(weights, [batch, most, seq], { tag: 'staging' });
  const sums = cast(reshape(matmul(factor, hidden), [batch * most, width]), 'f32');
  const isFull = counts.every((count) => count === most);
  return isFull
    ? sums
    : rowsAt(
        sums,
        places.map(({ row, place }) => row * most + place),
      );
}

function rowsAt(table: Tensor, rows: readonly number[]): Tensor {
  return embedding(table, table.device.tensor(Uint32Array.from(rows), [rows.length]));
}
