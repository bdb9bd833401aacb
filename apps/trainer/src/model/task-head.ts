// What a task puts on a model's rows: nothing, a pooling, or a classifier. It is plain data, which
// travels to rank processes and into saves.

import type { Pooling, ProblemType, SentenceTransformersConfig } from '@shardweave/nn/embedding';
import { TokenFile } from '../data/token-file.js';
import { UsageError } from '../errors.js';
import type { RunConfig, TokenFiles } from '../run-config.js';
import { isEncoder, type TextConfig } from './text-config.js';
import type { OwnHead } from './text-model.js';

export interface EmbedHead
  extends Pick<SentenceTransformersConfig, 'prompts' | 'similarity' | 'maxSeqLength'> {
  readonly kind: 'embed';
  readonly pooling: Pooling;
  readonly normalize: boolean;
}

export interface ClassHead {
  readonly kind: 'classify' | 'rerank';
  /** The labels by their ids; none before the data have been read. */
  readonly labels: readonly string[];
  readonly problemType: ProblemType;
}

export type TaskHead = { readonly kind: 'lm' } | EmbedHead | ClassHead;

/** The only label of a new reranker; its logit's sigmoid is how likely a document answers a query. */
const RELEVANCE: Pick<ClassHead, 'labels' | 'problemType'> = {
  labels: ['LABEL_0'],
  problemType: 'multi_label_classification',
};

/**
 * The head of a run, as far as it is known without its data.
 * @param own what the model's files say of theirs
 */
export function resolveHead(
  { task, pooling }: Pick<RunConfig, 'task'> & { readonly pooling: Pooling | undefined },
  modelConfig: TextConfig,
  own: OwnHead,
): TaskHead {
  switch (task) {
    case 'lm':
      return { kind: 'lm' };
    case 'embed': {
      const { normalize = true, prompts, similarity, maxSeqLength } = own.sentence ?? {};
      const usual = isEncoder(modelConfig) ? 'mean' : 'last';
      return {
        kind: 'embed',
        pooling: pooling ?? own.sentence?.pooling ?? usual,
        normalize,
        ...(prompts && { prompts }),
        ...(similarity && { similarity }),
        ...(maxSeqLength !== undefined && { maxSeqLength }),
      };
    }
    case 'rerank': {
      const { labels = [] } = own.classes ?? {};
      return { kind: 'rerank', ...RELEVANCE, ...(labels.length === 1 && { labels }) };
    }
    case 'classify': {
      const { labels = [], problemType = 'single_label_classification' } = own.classes ?? {};
      return { kind: 'classify', labels, problemType };
    }
  }
}

/**
 * Refuses a task whose head is in no files, because a model that is not trained has no other.
 * @param own what the model's files say of theirs
 * @throws {UsageError} for a classifier or a reranker that is none
 */
export function requireHead(task: TaskHead['kind'], model: string, { classes }: OwnHead): void {
  const count = classes?.labels.length ?? 0;
  const expected =
    task === 'classify' && count === 0
      ? 'a classifier, which has labels'
      : task === 'rerank' && count !== 1
        ? 'a reranker, which has one label'
        : undefined;
  if (expected !== undefined) {
    throw new UsageError(
      `--task ${task}: expected ${expected}, got ${model} with ${count === 0 ? 'none' : count}. Train one with shardweave train --task ${task}.`,
    );
  }
}

/**
 * The head of a run whose data have been read: a classifier keeps the labels of its files where the
 * data have no other ones.
 */
export async function headOf(head: TaskHead, { train }: TokenFiles): Promise<TaskHead> {
  if (head.kind !== 'classify') {
    return head;
  }
  await using file = await TokenFile.open(train);
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

/**
 * The id of a label by its name or, where a data set has numbers in place of names, by that number.
 * Of labels that are numbers themselves, such as stars from 1 to 5, another number is none.
 */
export function labelId(label: string, labels: readonly string[]): number | undefined {
  const named = labels.indexOf(label);
  if (named >= 0) {
    return named;
  }
  const isId = /^(0|[1-9]\d*)$/.test(label) && !labels.some((name) => /^-?\d+$/.test(name));
  return isId && Number(label) < labels.length ? Number(label) : undefined;
}

/** Names in the order of the alphabet, and numbers in theirs, whatever line comes first. */
function inOrder(labels: readonly string[]): string[] {
  const isNumeric = labels.every((label) => /^-?\d+$/.test(label));
  return [...labels].sort((a, b) => (isNumeric ? Number(a) - Number(b) : a < b ? -1 : 1));
}
