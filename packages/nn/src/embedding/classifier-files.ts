// A classifier's files in the Hub's layout, as the classes ...ForSequenceClassification have them:
// the transformer's, with the labels in config.json and a head among the weights.

import { checkValue, isProbability, OBJECT } from '../check-options.js';
import { FormatError } from '../errors.js';
import type { HostTensor, LazyTensor } from '../host-tensor.js';
import type { EncoderConfig } from '../models/encoder-config.js';
import type { ConfigFields } from '../models/hf/config-fields.js';
import { modelConfigFields, readModelConfig } from '../models/hf/config-file.js';
import { configText, parseConfigText, type WeightsDType } from '../models/hf/config-text.js';
import { encoderConfigFields, readEncoderConfig } from '../models/hf/encoder-config-file.js';
import { ENCODER_PREFIX, encoderTensors } from '../models/hf/encoder-files.js';
import { ownTensors } from '../models/hf/model-names.js';
import {
  filesOf,
  type ModelFile,
  type ModelFileOptions,
  type ModelFiles,
  openWeights,
  readConfig,
} from '../models/hf/weight-files.js';
import type { ModelConfig } from '../models/model-config.js';
import {
  PROBLEM_TYPES,
  type ProblemType,
  type SequenceClassifierConfig,
} from './sequence-classifier.js';

type Base = EncoderConfig | ModelConfig;

const ARCHITECTURES: Readonly<Record<Base['model_type'], string>> = {
  bert: 'BertForSequenceClassification',
  llama: 'LlamaForSequenceClassification',
  qwen2: 'Qwen2ForSequenceClassification',
  qwen3: 'Qwen3ForSequenceClassification',
  smollm3: 'SmolLM3ForSequenceClassification',
  gemma3_text: 'Gemma3TextForSequenceClassification',
  gpt2: 'GPT2ForSequenceClassification',
};

/** The fields that are read here, or that tell other programs how to show a score. */
const HEAD_FIELDS = [
  ...['architectures', 'id2label', 'label2id', 'num_labels', 'problem_type', 'classifier_dropout'],
  ...['sentence_transformers', 'sbert_ce_default_activation_function'],
];
const HEAD = /^(classifier|score)\./;
/** A language model's own head, which a classifier does not use. */
const LANGUAGE_HEAD = 'lm_head.weight';

/**
 * Reads a classifier's configuration from the text of its config.json. A decoder's head is tied,
 * whatever the file says, since files of classifiers have none. Names of labels are those of
 * id2label; a file without it has as many as num_labels says, or 2.
 * @throws {FormatError} for text that is not a JSON object, for `architectures` that are no
 * classifier's of this model_type, for labels that are not named 0, 1, 2 and so on, and for a field
 * that is unknown or asks for another computation
 * @throws {NnConfigError} naming a field whose value cannot work
 */
export function parseSequenceClassifierConfig(text: string): SequenceClassifierConfig {
  const fields = parseConfigText(text);
  const type = String(fields.model_type) as Base['model_type'];
  const known = Object.hasOwn(ARCHITECTURES, type)
    ? [ARCHITECTURES[type]]
    : Object.values(ARCHITECTURES);
  const { architectures } = fields;
  if (!Array.isArray(architectures) || !architectures.every((name) => known.includes(name))) {
    throw wrongField('architectures', known.join(' or '), architectures);
  }
  const ofBase = Object.fromEntries(
    Object.entries(fields).filter(([name]) => !HEAD_FIELDS.includes(name)),
  );
  const base =
    type === 'bert'
      ? { ...readEncoderConfig(ofBase), add_pooling_layer: true }
      : withoutHead(readModelConfig(ofBase));
  const { problem_type: problemType, classifier_dropout: dropout } = fields;
  const isKnown = PROBLEM_TYPES.some((name) => name === (problemType ?? name));
  if (!isKnown) {
    throw wrongField('problem_type', PROBLEM_TYPES.join(', '), problemType);
  }
  if (type === 'bert' && !isProbability(dropout ?? 0)) {
    throw wrongField('classifier_dropout', 'a number in [0, 1)', dropout);
  }
  return {
    base,
    labels: labelsOf(fields),
    problemType: (problemType ?? undefined) as ProblemType | undefined,
    classifierDropout: (type === 'bert' ? (dropout ?? undefined) : undefined) as number | undefined,
  };
}

/**
 * The text of the config.json that describes a classifier. `dtype` is that of the weights beside
 * it; default f32.
 */
export function sequenceClassifierConfigText(
  config: SequenceClassifierConfig,
  options: { readonly dtype?: WeightsDType } = {},
): string {
  const { base, labels, problemType, classifierDropout } = config;
  const { add_pooling_layer, ...fields } =
    base.model_type === 'bert' ? encoderConfigFields(base) : modelConfigFields(base);
  const ids = [...labels.entries()];
  return configText(
    'sequenceClassifierConfigText',
    {
      ...fields,
      architectures: [ARCHITECTURES[base.model_type]],
      id2label: Object.fromEntries(ids),
      label2id: Object.fromEntries(ids.map(([id, name]) => [name, id])),
      ...(problemType && { problem_type: problemType }),
      ...(classifierDropout !== undefined && { classifier_dropout: classifierDropout }),
    },
    options,
  );
}

/** A classifier as its files have it. */
export interface OpenSequenceClassifier {
  readonly config: SequenceClassifierConfig;
  /** Its weights under the model's own names, for loadStateDict. Each is read when asked for. */
  readonly state: ReadonlyMap<string, LazyTensor>;
}

/**
 * Opens a classifier: its config.json, and its weights in one model.safetensors or in several
 * files.
 * @throws {FormatError} for a file that is missing, malformed or cut off, for a config.json of
 * another model, and for weights without a head
 * @throws {NnConfigError} naming a field of the config.json whose value cannot work
 */
export async function openSequenceClassifier(files: ModelFiles): Promise<OpenSequenceClassifier> {
  const config = parseSequenceClassifierConfig(await readConfig(files));
  const tensors = [...(await openWeights(files))];
  const head = tensors.filter(([name]) => HEAD.test(name));
  if (head.length === 0) {
    throw new FormatError(
      'expected the weights of a classifier, got some without a head (classifier.weight or score.weight).',
    );
  }
  const others = new Map(tensors.filter(([name]) => !HEAD.test(name)));
  const { base } = config;
  const own =
    base.model_type === 'bert'
      ? [...encoderTensors(others)].map(
          ([name, tensor]) => [ENCODER_PREFIX + name, tensor] as const,
        )
      : await ownTensors(others, base);
  return { config, state: new Map([...own, ...head]) };
}

/**
 * The files of a classifier in the order in which to write them, config.json last: those that
 * the Hub's class ...ForSequenceClassification loads. Lazy tensors are read when it is their turn.
 */
export function sequenceClassifierFiles(
  config: SequenceClassifierConfig,
  state: ReadonlyMap<string, HostTensor | LazyTensor>,
  options: ModelFileOptions = {},
): readonly ModelFile[] {
  const kept = new Map([...state].filter(([name]) => name !== LANGUAGE_HEAD));
  return filesOf('sequenceClassifierFiles', kept, {
    ...options,
    configText: (dtype) => sequenceClassifierConfigText(config, { dtype }),
  });
}

function withoutHead(config: ModelConfig): ModelConfig {
  return config.model_type === 'gpt2' ? config : { ...config, tie_word_embeddings: true };
}

function labelsOf({ id2label, num_labels: count }: ConfigFields): string[] {
  if (id2label === undefined || id2label === null) {
    checkValue('config.json', 'num_labels', count ?? 2, {
      expected: 'a number of labels from 1 to a million',
      holds: (value) =>
        Number.isInteger(value) && (value as number) >= 1 && (value as number) <= 1e6,
    });
    return Array.from({ length: (count as number | undefined) ?? 2 }, (_, id) => `LABEL_${id}`);
  }
  const entries = OBJECT.holds(id2label) ? Object.entries(id2label as object) : [];
  const names = entries.map((_, id) => (id2label as Readonly<Record<string, unknown>>)[id]);
  if (names.length === 0 || !names.every((name) => typeof name === 'string')) {
    throw wrongField('id2label', 'names of the labels 0, 1, 2 and so on', id2label);
  }
  return names as string[];
}

function wrongField(name: string, expected: string, value: unknown): FormatError {
  return new FormatError(
    `config.json: expected ${name} to be ${expected}, got ${JSON.stringify(value)}.`,
  );
}
