// A model on disk for any task: a language model or an encoder, with what its files say of a head.

import { existsSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type LazyTensor, parseModelConfig } from '@shardweave/nn';
import {
  openSequenceClassifier,
  parseEncoderConfig,
  parseSequenceClassifierConfig,
} from '@shardweave/nn/embedding';
import { UsageError } from '../errors.js';
import { withModelFiles } from '../files/file-source.js';
import { isGgufFile } from '../files/gguf-model.js';
import { isLanguage, type OwnHead, type TaskHead } from '../task/task-head.js';
import { isEncoder, type TextConfig } from '../task/text-config.js';
import { ADAPTER_FILES, CLASSES_FILE } from './adapter-directory.js';
import { readEmbedder, readModelKind, withEncoder } from './encoder-directory.js';
import { CONFIG_FILE, explainModel, readModelConfig, withModelState } from './model-directory.js';

export interface TextModel {
  readonly config: TextConfig;
  readonly own: OwnHead;
}

/** A language model's own head, which no other task uses. */
const LANGUAGE_HEAD = 'lm_head.weight';
const ENCODER_PREFIX = 'bert.';
const POOLER = 'pooler.';
const CLASS_HEAD = /^(classifier|score)\./;

/**
 * What the files in `directory` describe.
 * @throws {UsageError} where they are missing, or describe what can't be trained here
 */
export async function readTextModel(directory: string): Promise<TextModel> {
  const kind = await readModelKind(directory);
  if (isGgufFile(directory) || (!kind.isEncoder && kind.classifier === undefined)) {
    const config = await readModelConfig(directory);
    return { config, own: { sentence: await readEmbedder(directory, kind) } };
  }
  const path = join(directory, CONFIG_FILE);
  return await explainModel(path, async () => {
    const text = await readFile(path, 'utf8');
    if (kind.classifier !== undefined) {
      const { base: config, labels, problemType } = parseSequenceClassifierConfig(text);
      return { config, own: { classes: { labels, problemType } } };
    }
    const config = kind.type === 'bert' ? parseEncoderConfig(text) : parseModelConfig(text);
    return { config, own: { sentence: await readEmbedder(directory, kind) } };
  });
}

/**
 * What the files of adapters say of a classifier's labels; undefined where they say none.
 * @throws {UsageError} where the file can't be read
 */
export async function readAdapterClasses(directory: string): Promise<OwnHead['classes']> {
  const path = join(directory, CLASSES_FILE);
  const isAdapter = existsSync(join(directory, ADAPTER_FILES.config));
  // Other programs leave the base's config.json beside adapters of any kind.
  if (!isAdapter || (await readModelKind(directory)).classifier === undefined) {
    return undefined;
  }
  return await explainModel(path, async () =>
    parseSequenceClassifierConfig(await readFile(path, 'utf8')),
  );
}

/**
 * What the files of a model, or those of adapters for it, say of the head.
 * @param adapter the directory of adapters; undefined for none
 */
export async function ownHead(own: OwnHead, adapter: string | undefined): Promise<OwnHead> {
  if (adapter === undefined) {
    return own;
  }
  const classes = await readAdapterClasses(adapter);
  const sentence = await readEmbedder(adapter, { isEncoder: false });
  return classes !== undefined ? { classes } : sentence !== undefined ? { sentence } : own;
}

/** What a model is for, as far as its files say: else an encoder embeds, and a decoder writes. */
export function usualTask(config: TextConfig, { classes, sentence }: OwnHead): TaskHead['kind'] {
  if (classes !== undefined) {
    return classes.labels.length === 1 ? 'rerank' : 'classify';
  }
  return sentence !== undefined || isEncoder(config) ? 'embed' : 'lm';
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
 * The configuration of the model that a task trains: without the head of a language model, and with
 * the pooler that an encoder's classifier begins with.
 * @throws {UsageError} for an encoder that shall write text
 */
export function configFor(task: TaskHead['kind'], config: TextConfig): TextConfig {
  if (isEncoder(config)) {
    if (isLanguage(task)) {
      throw new UsageError(
        `--task ${task}: a ${config.model_type} reads text and writes none. Give --task embed, classify or rerank, or a language model.`,
      );
    }
    return { ...config, add_pooling_layer: task !== 'embed' };
  }
  return isLanguage(task) || config.model_type === 'gpt2'
    ? config
    : { ...config, tie_word_embeddings: true };
}

type State = ReadonlyMap<string, LazyTensor>;

/**
 * Hands the weights in `directory` to `use`, as withModelState does, under the names that they have
 * below a task's head. What the task has no place for is left out; a head that is new is missing.
 */
export async function withTaskState<T>(
  directory: string,
  { modelConfig, head }: { readonly modelConfig: TextConfig; readonly head: TaskHead },
  use: (state: State) => Promise<T>,
): Promise<T> {
  if (isLanguage(head.kind) && !isEncoder(modelConfig)) {
    return await withModelState(directory, modelConfig, use);
  }
  const kind = await readModelKind(directory);
  const { config, own } = await readTextModel(directory);
  const isKept = 'labels' in head && isSame(head.labels, own.classes?.labels);
  const useOwn = (state: State) =>
    use(stateFor(head, state, { isKept, isBert: isEncoder(config) }));
  if (isEncoder(config)) {
    return await withEncoder(directory, kind, ({ state }) => useOwn(state));
  }
  if (own.classes === undefined) {
    return await withModelState(directory, config, useOwn);
  }
  return await explainModel(directory, () =>
    withModelFiles(directory, async (files) => useOwn((await openSequenceClassifier(files)).state)),
  );
}

/** Tensors under the names that they have below a head, without those of other heads. */
function stateFor(
  head: TaskHead,
  state: State,
  { isKept, isBert }: { readonly isKept: boolean; readonly isBert: boolean },
): State {
  const isForeign = (name: string) =>
    name === LANGUAGE_HEAD ||
    (!isKept && CLASS_HEAD.test(name)) ||
    (head.kind === 'embed' && name.startsWith(POOLER));
  const prefix = isBert && head.kind !== 'embed' ? ENCODER_PREFIX : '';
  const found: [string, LazyTensor][] = [];
  for (const [given, tensor] of state) {
    const name = given.startsWith(ENCODER_PREFIX) ? given.slice(ENCODER_PREFIX.length) : given;
    if (!isForeign(name)) {
      found.push([CLASS_HEAD.test(name) ? name : prefix + name, tensor]);
    }
  }
  return new Map(found);
}

function isSame(labels: readonly string[], others: readonly string[] | undefined): boolean {
  return labels.length === others?.length && labels.every((label, id) => label === others[id]);
}

/** Whether a parameter of a task's model may be missing in files: its head's, or the pooler. */
export function isOfHead(name: string): boolean {
  return CLASS_HEAD.test(name) || name.startsWith(ENCODER_PREFIX + POOLER);
}
