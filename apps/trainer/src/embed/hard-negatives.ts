// Which documents make a query's hard negatives: those that are most similar to it and answer
// another one.

/**
 * The similarity above which a document may be an answer that nobody has noted: `margin` times that
 * of the answer. An answer of a negative similarity is below itself times a margin under 1, so that
 * the distance counts there: 0.95 leaves 0.76 of 0.8, and -0.42 of -0.4.
 */
export function similarityLimit(answer: number, margin: number): number {
  return answer - (1 - margin) * Math.abs(answer);
}

export interface HardestOptions {
  /** At most so many are found. */
  readonly count: number;
  /** The highest score that is taken. */
  readonly limit: number;
  /** The numbers of documents that are not taken. */
  readonly answers: ReadonlySet<number>;
}

/** The numbers of the documents of the highest scores; of equal ones the first comes first. */
export function hardest(
  scores: ArrayLike<number>,
  { count, limit, answers }: HardestOptions,
): number[] {
  const found: number[] = [];
  for (let i = 0; i < scores.length; i++) {
    const score = scores[i]!;
    const isFull = found.length === count;
    if (!(score <= limit) || (isFull && score <= scores[found.at(-1)!]!) || answers.has(i)) {
      continue;
    }
    let place = found.length;
    while (place > 0 && scores[found[place - 1]!]! < score) {
      place--;
    }
    found.splice(place, 0, i);
    found.length = Math.min(found.length, count);
  }
  return found;
}
