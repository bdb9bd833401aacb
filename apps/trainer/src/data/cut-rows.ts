// Some rows of a batch as a batch of their own, whatever the batch is of.

import type { MicroBatch } from './dataset.js';
import type { ExampleBatch } from './example-data.js';
import type { OwnBatch } from './own-rows.js';
import { NO_TARGET } from './rows.js';

/** The batch of any task. */
export type AnyBatch = MicroBatch | ExampleBatch | OwnBatch;

/** Rows [first, end) of tokens; there may be none. */
export function cutTokens(batch: MicroBatch, first: number, end: number, seq: number): MicroBatch {
  const of = <T extends Uint32Array | Float32Array>(values: T) =>
    values.subarray(first * seq, end * seq) as T;
  const { tokens, targets, segments, positions, weights } = batch;
  return {
    ...batch,
    ...{ rows: end - first, firstRow: batch.firstRow + first },
    ...{ tokens: of(tokens), targets: of(targets) },
    ...(segments && { segments: of(segments) }),
    ...(positions && { positions: of(positions) }),
    ...(weights && { weights: of(weights) }),
  };
}

/** Rows [first, end) of any batch. */
export function cutRows<Batch extends AnyBatch>(
  batch: Batch,
  { first, end, seq }: { readonly first: number; readonly end: number; readonly seq: number },
): AnyBatch {
  const firstRow = batch.firstRow + first;
  if ('examples' in batch) {
    return { ...batch, examples: batch.examples.slice(first, end), firstRow };
  }
  return 'numbers' in batch
    ? { ...batch, numbers: batch.numbers.slice(first, end), firstRow }
    : cutTokens(batch, first, end, seq);
}

/** The number of targets that count among rows of tokens; an example counts as one. */
export function targetsIn(batch: AnyBatch): number {
  if ('examples' in batch) {
    return batch.examples.length;
  }
  return 'numbers' in batch
    ? batch.numbers.length
    : batch.targets.reduce((sum, target) => sum + Number(target !== NO_TARGET), 0);
}

/**
 * The tokens of the texts in a batch of one row, those of each document by themselves; a module's
 * own row has none that are known.
 */
export function tokensIn(batch: AnyBatch): readonly (readonly number[])[] {
  if ('examples' in batch) {
    return batch.examples.flatMap(({ texts }) => texts.map(({ ids }) => Array.from(ids)));
  }
  return 'numbers' in batch ? [] : documentsIn(batch);
}

/** The tokens of each document of a row, without padding: zeros from which nothing is learnt. */
function documentsIn({ tokens, targets, segments }: MicroBatch): number[][] {
  const isPadding = (i: number) => tokens[i] === 0 && targets[i] === NO_TARGET;
  const places = [...tokens.keys()];
  if (segments === undefined) {
    const end = places.findLastIndex((i) => !isPadding(i)) + 1;
    return [[...tokens.subarray(0, end)]];
  }
  return [...new Set(segments)]
    .map((segment) => places.filter((i) => segments[i] === segment))
    .filter((own) => !own.every(isPadding))
    .map((own) => own.map((i) => tokens[i]!));
}
