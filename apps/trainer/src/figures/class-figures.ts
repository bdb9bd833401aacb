// The figures of a classifier, from how often which label was given to which.

import type { ClassFigures, Figures } from './figures.js';

/** Counts of [labels, labels]: the texts of a label (rows) that were given another (columns). */
export function confusionFigures(labels: readonly string[], counts: Float32Array): Figures {
  const count = labels.length;
  const at = (row: number, column: number) => counts[row * count + column]!;
  const sum = (of: (i: number) => number) => labels.reduce((all, _, i) => all + of(i), 0);
  const classes = labels.map((label, i) =>
    classFigures(label, {
      both: at(i, i),
      given: sum((row) => at(row, i)),
      had: sum((column) => at(i, column)),
    }),
  );
  const total = sum((row) => sum((column) => at(row, column)));
  const accuracy = sum((i) => at(i, i)) / total;
  return {
    values: { accuracy, f1: meanF1(classes) },
    classes,
    confusion: labels.map((_, i) => [...counts.subarray(i * count, (i + 1) * count)]),
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
  const classes = labels.map((label, i) => {
    const [both = 0, given = 0, had = 0] = counts.subarray(3 * i, 3 * i + 3);
    return classFigures(label, { both, given, had });
  });
  return { values: { accuracy: exact / texts, f1: meanF1(classes) }, classes };
}

/** The mean over classes that are there, so that a rare one counts as much as the others. */
function meanF1(classes: readonly ClassFigures[]): number {
  const present = classes.filter(({ support, f1 }) => support > 0 || f1 > 0);
  return present.reduce((all, { f1 }) => all + f1, 0) / present.length;
}

function classFigures(
  label: string,
  { both, given, had }: { readonly both: number; readonly given: number; readonly had: number },
): ClassFigures {
  const part = (of: number, all: number) => (all === 0 ? 0 : of / all);
  return {
    label,
    precision: part(both, given),
    recall: part(both, had),
    f1: part(2 * both, given + had),
    support: had,
  };
}
