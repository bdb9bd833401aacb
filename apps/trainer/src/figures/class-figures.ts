// The figures of a classifier, from how often which label was given to which.

import type { ClassFigures, Figures } from './figures.js';

/** How many texts have a label and were given it, were given it, and have it. */
interface Counted {
  readonly both: number;
  readonly given: number;
  readonly had: number;
}

/**
 * Counts of [labels, labels + 1]: the texts of a label (rows) that were given another (columns);
 * the last column has those that were given none.
 */
export function confusionFigures(labels: readonly string[], counts: Float32Array): Figures {
  const count = labels.length;
  const at = (row: number, column: number) => counts[row * (count + 1) + column]!;
  const sum = (of: (i: number) => number) => labels.reduce((all, _, i) => all + of(i), 0);
  const counted = labels.map((_, i) => ({
    both: at(i, i),
    given: sum((row) => at(row, i)),
    had: at(i, count) + sum((column) => at(i, column)),
  }));
  const accuracy = sum((i) => counted[i]!.both) / sum((i) => counted[i]!.had);
  return {
    ...classesOf(labels, counted, accuracy),
    confusion: labels.map((_, row) => labels.map((_, column) => at(row, column))),
  };
}

/** What several labels at once are counted by: texts, and those with all labels right. */
export interface SeveralCounts {
  /** [labels, 3]: the texts that have a label and were given it, were given it, and have it. */
  readonly counts: Float32Array;
  readonly texts: number;
  readonly exact: number;
}

export function severalFigures(
  labels: readonly string[],
  { counts, texts, exact }: SeveralCounts,
): Figures {
  const counted = labels.map((_, i) => {
    const [both = 0, given = 0, had = 0] = counts.subarray(3 * i, 3 * i + 3);
    return { both, given, had };
  });
  return classesOf(labels, counted, exact / texts);
}

/**
 * F1 is the mean over classes, so that a rare one counts as much as the others. As in scikit-learn,
 * a class that no text has is one of them where a text was given it.
 */
function classesOf(
  labels: readonly string[],
  counted: readonly Counted[],
  accuracy: number,
): Figures {
  const classes = labels.map((label, i) => classFigures(label, counted[i]!));
  const present = classes.filter((_, i) => counted[i]!.had + counted[i]!.given > 0);
  const f1 = present.reduce((all, own) => all + own.f1, 0) / present.length;
  return { values: { accuracy, f1 }, classes };
}

function classFigures(label: string, { both, given, had }: Counted): ClassFigures {
  const part = (of: number, all: number) => (all === 0 ? 0 : of / all);
  return {
    label,
    precision: part(both, given),
    recall: part(both, had),
    f1: part(2 * both, given + had),
    support: had,
  };
}
