// The labels of a run, once its data have been read.

import { UsageError } from '../errors.js';
import type { TokenFiles } from '../run-config.js';
import { type ClassHead, labelId, type TrainedHead } from '../task/task-head.js';
import { TokenFile } from './token-file.js';

/**
 * The head of a run whose data have been read: a classifier keeps the labels of its files where the
 * data have no other ones.
 */
export async function headOf<Head extends TrainedHead>(
  head: Head,
  { train }: TokenFiles,
): Promise<Head | ClassHead> {
  if (head.kind !== 'classify') {
    return head;
  }
  await using file = await TokenFile.open(train[0]!.directory); // of examples there is one part
  const { labels, kind } = file.index.examples!;
  const isKnown =
    head.labels.length > 0 && labels.every((label) => labelId(label, head.labels) !== undefined);
  const [least, expected] = kind === 'one label' ? [2, 'two labels'] : [1, 'a label'];
  if (!isKnown && labels.length < least) {
    const got = labels.length === 0 ? 'none' : `${labels[0]} alone`;
    throw new UsageError(
      `--data: expected ${expected} or more, got ${got}. A classifier learns to tell texts apart.`,
    );
  }
  return {
    kind: 'classify',
    labels: isKnown ? head.labels : inOrder(labels),
    problemType:
      kind === 'several labels' ? 'multi_label_classification' : 'single_label_classification',
  };
}

/** Names in the order of the alphabet, and numbers in theirs, whatever line comes first. */
function inOrder(labels: readonly string[]): string[] {
  const isNumeric = labels.every((label) => /^-?\d+$/.test(label));
  return [...labels].sort((a, b) => (isNumeric ? Number(a) - Number(b) : a < b ? -1 : 1));
}
