// What a task puts on a model's rows: nothing, a pooling, or a classifier. It is plain data, which
// travels to rank processes and into saves.

import type { Pooling, ProblemType, SentenceTransformersConfig } from '@shardweave/nn/embedding';
import { isEncoder, type TextConfig } from './text-config.js';

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
  /** A weight for each label in the loss; undefined where all count alike. */
  readonly weights?: readonly number[] | undefined;
}

/** The tasks that learn from pairs of answers of which one is preferred. */
export type PreferenceTask = 'dpo' | 'orpo';

/** A language model as it is. */
export type LanguageHead = { readonly kind: 'lm' | PreferenceTask };

export type TaskHead = LanguageHead | EmbedHead | ClassHead;

/** What a run puts on its model: nothing on a module that people write, which has a loss itself. */
export type TrainedHead = TaskHead | { readonly kind: 'module' };

export function isPreference(task: string): task is PreferenceTask {
  return task === 'dpo' || task === 'orpo';
}

/** Whether what a task trains is a language model with its own head, which writes text. */
export function isLanguage(task: string): task is LanguageHead['kind'] {
  return task === 'lm' || isPreference(task);
}

/** What the files of a model say of the head that it has been trained with. */
export interface OwnHead {
  /** How sentence-transformers makes an embedding. */
  readonly sentence?: SentenceTransformersConfig | undefined;
  readonly classes?:
    | { readonly labels: readonly string[]; readonly problemType?: ProblemType | undefined }
    | undefined;
}

/** A new reranker's only label; its logit's sigmoid is how likely a document answers a query. */
const RELEVANCE: Pick<ClassHead, 'labels' | 'problemType'> = {
  labels: ['LABEL_0'],
  problemType: 'multi_label_classification',
};

/**
 * The head of a run, as far as it is known without its data.
 * @param own what the model's files say of theirs
 */
export function resolveHead(
  { task, pooling }: { readonly task: TaskHead['kind']; readonly pooling: Pooling | undefined },
  modelConfig: TextConfig,
  own: OwnHead,
): TaskHead {
  switch (task) {
    case 'lm':
    case 'dpo':
    case 'orpo':
      return { kind: task };
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

/** What is put before queries and before documents; undefined where that is nothing. */
export function promptsOf({ prompts = {} }: Pick<EmbedHead, 'prompts'>): {
  readonly query: string | undefined;
  readonly document: string | undefined;
} {
  // The first of these names is the one that sentence-transformers takes for documents.
  const { query, document, passage, corpus } = prompts;
  return { query, document: document ?? passage ?? corpus };
}

/**
 * The id of a label by its name or, where a data set has numbers in place of names, by that number.
 * Where labels are numbers themselves, such as stars from 1 to 5, another number is no id.
 */
export function labelId(label: string, labels: readonly string[]): number | undefined {
  const named = labels.indexOf(label);
  if (named >= 0) {
    return named;
  }
  const isId = /^(0|[1-9]\d*)$/.test(label) && !labels.some((name) => /^-?\d+$/.test(name));
  return isId && Number(label) < labels.length ? Number(label) : undefined;
}
