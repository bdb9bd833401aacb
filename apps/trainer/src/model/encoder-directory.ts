// A text encoder on disk: its transformer in the Hub's layout, an embedder's files of
// sentence-transformers, or a classifier's labels and head. model-directory.ts has language models.

import { existsSync } from 'node:fs';
import { join } from 'node:path';
import type { LazyTensor, ModelFiles } from '@shardweave/nn';
import {
  type EncoderConfig,
  openEncoder,
  openSequenceClassifier,
  readSentenceTransformers,
  type SentenceTransformersConfig,
} from '@shardweave/nn/embedding';
import { UsageError } from '../errors.js';
import { explainFiles, withModelFiles } from '../files/file-source.js';
import { isGgufFile } from '../files/gguf-model.js';
import { readTexts } from '../files/read-texts.js';
import { MODULES_FILE, poolingFile, SENTENCE_FILES } from '../files/sentence-files.js';
import { isLeftOut } from '../hub/hub-cache.js';
import { hubNameOf } from '../hub/hub-name.js';

import { CONFIG_FILE, refuseModule } from './model-directory.js';

/** What config.json says of the kind of a model, by which commands differ. */
export interface ModelKind {
  /** Its model_type, such as `bert`; undefined where the file has none, and of a GGUF file. */
  readonly type: string | undefined;
  /** Whether it is a text encoder, and no language model. */
  readonly isEncoder: boolean;
  /** The class with labels that it names, such as `BertForSequenceClassification`. */
  readonly classifier: string | undefined;
}

/** The kind of the model in a directory, or in a GGUF file. Who reads all of it checks the rest. */
export async function readModelKind(path: string): Promise<ModelKind> {
  const texts = isGgufFile(path) ? new Map() : await readTexts(path, [CONFIG_FILE]);
  const config = texts.get(CONFIG_FILE) ?? '{}';
  refuseModule(path, config);
  return modelKindOf(config);
}

function modelKindOf(config: string): ModelKind {
  let fields: Readonly<Record<string, unknown>> = {};
  try {
    fields = Object(JSON.parse(config));
  } catch {
    // Who reads the file for its numbers says that it is no JSON.
  }
  const { model_type: type, architectures } = fields;
  const names = Array.isArray(architectures) ? architectures.map(String) : [];
  return {
    type: typeof type === 'string' ? type : undefined,
    isEncoder: type === 'bert',
    classifier: names.find((name) => name.endsWith('ForSequenceClassification')),
  };
}

/**
 * What the files of sentence-transformers say of an embedder; undefined where there are none.
 * @throws {UsageError} where they can't be read, ask for what is not supported, or are not known,
 * as the cache of the Hub is without them and has not noted that there are none
 */
export async function readEmbedder(
  directory: string,
  { isEncoder }: Pick<ModelKind, 'isEncoder'>,
): Promise<SentenceTransformersConfig | undefined> {
  if (isGgufFile(directory)) {
    return undefined;
  }
  if (existsSync(join(directory, MODULES_FILE))) {
    const texts = await embedderTexts(directory);
    const remedy = 'Give an embedder that pools its rows, and does no more with them.';
    return await explainFiles({ what: `--model: ${directory}`, remedy }, () =>
      readSentenceTransformers(async (path) => texts.get(path)),
    );
  }
  if (isEncoder && isLeftOut(directory, MODULES_FILE)) {
    throw new UsageError(
      `--model: whether ${hubNameOf(directory)} has a ${MODULES_FILE}, which says how an embedder pools, is not known in the cache. Run the command once where the Hub can be reached.`,
    );
  }
  return undefined;
}

/** The texts of the files by which sentence-transformers knows an embedder, by their paths. */
export function embedderTexts(directory: string): Promise<Map<string, string>> {
  return readTexts(directory, [...SENTENCE_FILES, poolingFile(directory) ?? []].flat());
}

/** An encoder and its tensors; a classifier's have its head, and names that begin with `bert.`. */
export interface EncoderParts {
  readonly config: EncoderConfig;
  readonly state: ReadonlyMap<string, LazyTensor>;
  /** Those of a classifier. */
  readonly labels?: readonly string[] | undefined;
}

/**
 * Hands an encoder, or the classifier on one, to `use`. Each tensor is read when `use` reads it;
 * the headers of the files are checked before.
 * @throws {UsageError} where files can't be read, or do not hold an encoder
 */
export function withEncoder<T>(
  directory: string,
  kind: ModelKind,
  use: (parts: EncoderParts) => Promise<T>,
): Promise<T> {
  const remedy =
    'Give a directory with a BERT in the Hugging Face layout, such as MiniLM, BGE or E5.';
  return explainFiles({ what: `--model: ${directory}`, remedy }, () =>
    withModelFiles(directory, async (files) => use(await openParts(files, kind))),
  );
}

/** Opens an encoder, or the classifier on one. Throws as openEncoder does. */
export async function openParts(
  files: ModelFiles,
  { classifier }: ModelKind,
): Promise<EncoderParts> {
  if (classifier === undefined) {
    return await openEncoder(files);
  }
  const { config, state } = await openSequenceClassifier(files);
  return { config: config.base as EncoderConfig, state, labels: config.labels };
}
