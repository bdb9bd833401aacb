// Pairs of answers as the examples of a run: which tokens each half has, and which of them count.

import type { TypedDocument } from '@shardweave/nn/embedding';
import { UsageError } from '../errors.js';
import { placeIn } from './data-file.js';
import { formatOf } from './data-source.js';
import type { ExampleFile } from './example-file.js';

/** The halves of a pair by their documents, with the tokens of their prompts. */
function halvesOf(file: ExampleFile, example: number) {
  const { first, second } = file.documentsOf(example);
  const [chosen, rejected] = file.labelsOf(example);
  return [
    { document: first, promptLength: chosen! },
    { document: second!, promptLength: rejected! },
  ] as const;
}

/**
 * A pair as the model gets it: its answers behind their prompts, whose tokens have the type 0 and
 * those of answers 1. A row of `seq` places has one token more, because nothing follows the last;
 * an answer loses what is beyond.
 * @param reference the logarithms of both answers' probabilities by a reference; none without one
 */
export async function answerPair(
  file: ExampleFile,
  example: number,
  {
    seq,
    reference = [],
  }: { readonly seq: number; readonly reference?: readonly number[] | undefined },
): Promise<{ readonly texts: readonly TypedDocument[]; readonly labels: readonly number[] }> {
  const texts = await Promise.all(
    halvesOf(file, example).map(async ({ document, promptLength }): Promise<TypedDocument> => {
      const ids = await file.read(document, seq + 1);
      return { ids, tokenTypes: new Uint32Array(ids.length).fill(1, promptLength) };
    }),
  );
  return { texts, labels: reference };
}

/** The places that both halves of a pair take in rows. */
export function pairLength(file: ExampleFile, example: number, seq: number): number {
  return halvesOf(file, example).reduce(
    (sum, { document }) => sum + file.lengthOf(document, seq + 1) - 1,
    0,
  );
}

/** Whether an answer of a pair loses tokens. */
export function isCut(file: ExampleFile, example: number, seq: number): boolean {
  return halvesOf(file, example).some(
    ({ document }) => file.lengthOf(document, Number.POSITIVE_INFINITY) > seq + 1,
  );
}

/** @throws {UsageError} for a pair of whose answers no token is left in a row */
export function requireAnswers(
  file: ExampleFile,
  numbers: Uint32Array,
  { seq, flag, name }: { readonly seq: number; readonly flag: string; readonly name: string },
): void {
  for (const example of numbers) {
    const longest = Math.max(...halvesOf(file, example).map(({ promptLength }) => promptLength));
    if (longest > seq) {
      const place = placeIn(name, formatOf(name, flag), file.lineOf(example));
      throw new UsageError(
        `${flag}: ${place}: the prompt has ${longest} tokens, and a row of --seq ${seq} has no room for an answer. Give a longer --seq, or leave the line out.`,
      );
    }
  }
}
