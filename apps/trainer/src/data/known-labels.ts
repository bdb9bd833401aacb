// The labels of a run, once its data have been read.

import { UsageError } from '../errors.js';
import type { RunConfig, TokenFiles } from '../run-config.js';
import { type ClassHead, labelId, type TrainedHead } from '../task/task-head.js';
import { ExampleFile } from './example-file.js';

/**
 * The head of a run whose data have been read: a classifier keeps the labels of its files where the
 * data have no other ones.
 */
export async function headOf(
  {
    head,
    classWeights = 'none',
  }: Pick<RunConfig, 'head'> & Partial<Pick<RunConfig, 'classWeights'>>,
  { train }: TokenFiles,
): Promise<TrainedHead> {
  if (head.kind !== 'classify') {
    return head;
  }
  const examples = await ExampleFile.open(train[0]!.directory); // of examples there is one part
  await using _file = examples.file;
  const { labels, kind } = examples.index;
  const isKnown =
    head.labels.length > 0 && labels.every((label) => labelId(label, head.labels) !== undefined);
  const [least, expected] = kind === 'one label' ? [2, 'two labels'] : [1, 'a label'];
  if (!isKnown && labels.length < least) {
    const got = labels.length === 0 ? 'none' : `${labels[0]} alone`;
    throw new UsageError(
      `--data: expected ${expected} or more, got ${got}. A classifier learns to tell texts apart.`,
    );
  }
  const known: ClassHead = {
    kind: 'classify',
    labels: isKnown ? head.labels : inOrder(labels),
    problemType:
      kind === 'several labels' ? 'multi_label_classification' : 'single_label_classification',
  };
  return classWeights === 'none' ? known : { ...known, weights: balanced(known, examples) };
}

/**
 * A weight for each label, so that rare ones count for as much as others. For one label a text it
 * is all texts / (labels * texts with it), of which the mean over the texts is 1; for several it is
 * the texts without it / those with it.
 */
function balanced({ labels, problemType }: ClassHead, examples: ExampleFile): number[] {
  const { index } = examples;
  const counts = labels.map(() => 0);
  const ids = index.labels.map((label) => labelId(label, labels)!);
  for (let example = 0; example < index.count; example++) {
    for (const number of examples.labelsOf(example)) {
      counts[ids[number]!]!++;
    }
  }
  const numFound = counts.filter((count) => count > 0).length;
  return counts.map((count) => {
    if (count === 0) {
      return 1; // which no text has, so that it weighs nothing whatever it is
    }
    return problemType === 'single_label_classification'
      ? index.count / (numFound * count)
      : (index.count - count) / count;
  });
}

/** Names in the order of the alphabet, and numbers in theirs, whatever line comes first. */
function inOrder(labels: readonly string[]): string[] {
  const isNumeric = labels.every((label) => /^-?\d+$/.test(label));
  return [...labels].sort((a, b) => (isNumeric ? Number(a) - Number(b) : a < b ? -1 : 1));
}
