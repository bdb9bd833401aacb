// Writes a model of the Hugging Face layout as one GGUF file: its configuration and tokenizer
// become metadata, and its tensors get llama.cpp's names. One tensor is in memory at a time.

import type { HostTensor, LazyTensor, ModelConfig } from '@shardweave/nn';
import { parseModelConfig } from '@shardweave/nn';
import { type EncoderConfig, type Pooling, parseEncoderConfig } from '@shardweave/nn/embedding';
import { encoderPlans, POOLER } from './encoder-tensors.js';
import { GgufModelError, GgufUsageError } from './errors.js';
import { fileTensor } from './file-tensor.js';
import { GGUF_TYPES, type GgufType, tensorTypes } from './file-types.js';
import { type GgufFile, ggufFile } from './gguf-file.js';
import { modelMetadata, POOLING_TYPES } from './model-metadata.js';
import { type TensorPlan, tensorPlans } from './model-tensors.js';
import { ropeFactors } from './rope-factors.js';
import { tokenizerMetadata } from './tokenizer/tokenizer-metadata.js';

/** The files of a model's directory, other than its weights, from which a GGUF is made. */
export const MODEL_TEXTS = [
  'config.json',
  'tokenizer.json',
  'tokenizer_config.json',
  'generation_config.json',
  'chat_template.jinja',
] as const;

/** A model as its directory on the Hub has it. */
export interface ModelGguf {
  /** The texts of MODEL_TEXTS by name: the first two, and those of the others that exist. */
  readonly texts: ReadonlyMap<string, string>;
  /** The weights under the model's own names, with or without a tied head; f32, f16 or bf16. */
  readonly state: ReadonlyMap<string, HostTensor | LazyTensor>;
}

/** The type of the matrices of a GGUF file, and the name of its model. */
export interface ModelGgufOptions {
  /**
   * The type of matrices. Vectors and GPT-2's positions are always f32. A file in blocks has
   * another type where llama.cpp's own has one: the head, matrices of a mixture that get more bits,
   * and those whose rows are not whole blocks.
   */
  readonly type: GgufType;
  /** The name of the model (`general.name`). */
  readonly name: string;
  /**
   * How an embedder's rows of tokens become one, as EmbeddingModel's (`pooling_type`). Default: an
   * encoder gives a row for each token, and a language model is no embedder.
   */
  readonly pooling?: Pooling | undefined;
}

/**
 * The GGUF file of a model; its tensors are read when their turn comes.
 * @throws {GgufModelError} for weights that are not the configuration's, and for models that
 * llama.cpp doesn't compute
 * @throws {GgufTokenizerError} for a tokenizer that llama.cpp has no equivalent of
 * @throws {GgufUsageError} for an unknown type, and where a file is missing
 * @throws {NnError} for a config.json that can't be read
 * @example
 * ```ts
 * import { type ModelGguf, modelGguf } from '@shardweave/gguf';
 *
 * async function* quantized(model: ModelGguf) {
 *   yield* modelGguf(model, { type: 'q8_0', name: 'mine' }).pieces();
 * }
 * ```
 */
export function modelGguf(model: ModelGguf, options: ModelGgufOptions): GgufFile {
  const { texts, state } = model;
  const { type, pooling } = options;
  if (!GGUF_TYPES.includes(type)) {
    throw new GgufUsageError(
      `modelGguf: expected type to be ${GGUF_TYPES.join(', ')}, got ${JSON.stringify(type)}.`,
    );
  }
  if (pooling !== undefined && !Object.hasOwn(POOLING_TYPES, pooling)) {
    throw new GgufUsageError(
      `modelGguf: expected pooling to be ${Object.keys(POOLING_TYPES).join(', ')}, got ${JSON.stringify(pooling)}.`,
    );
  }
  const configText = texts.get('config.json');
  if (configText === undefined) {
    throw new GgufUsageError('modelGguf: expected the text of config.json, got none.');
  }
  const config = configOf(configText);
  const metadata = new Map([
    ...modelMetadata(config, options),
    ...tokenizerMetadata(texts, config.vocab_size),
  ]);
  const isTurned = config.model_type !== 'gpt2' && config.model_type !== 'bert';
  const factors = isTurned ? ropeFactors(config) : undefined;
  const plans = plansOf(config, model.state, pooling !== undefined);
  checkNames(plans, { state, config });
  const types = tensorTypes(plans, { config, type });
  const tensors = plans.map((plan, i) =>
    fileTensor(plan, { tensor: state.get(plan.source)!, type: types[i]!, call: 'modelGguf' }),
  );
  return ggufFile(metadata, factors === undefined ? tensors : [factors, ...tensors]);
}

type Config = ModelConfig | EncoderConfig;

/** The configuration in the text of a config.json, of an encoder or of a language model. */
function configOf(text: string): Config {
  let kind: unknown;
  try {
    kind = (JSON.parse(text) as { model_type?: unknown } | null)?.model_type;
  } catch {
    // parseModelConfig says what is wrong.
  }
  return kind === 'bert' ? parseEncoderConfig(text) : parseModelConfig(text);
}

/** The plans of a model's tensors. Embedders' files may lack the head, which they don't use. */
function plansOf(
  config: Config,
  state: ModelGguf['state'],
  isEmbedder: boolean,
): readonly TensorPlan[] {
  if (config.model_type === 'bert') {
    return encoderPlans(config);
  }
  const isLeftOut = ({ source }: TensorPlan) =>
    isEmbedder && source === LANGUAGE_HEAD && !state.has(source);
  return tensorPlans(config).filter((plan) => !isLeftOut(plan));
}

const LANGUAGE_HEAD = 'lm_head.weight';

/** Whether a model has a tensor beside its planned ones that its file does not need. */
function isUnneeded(config: Config, name: string): boolean {
  if (config.model_type === 'bert') {
    return POOLER.test(name);
  }
  const isTied = config.model_type === 'gpt2' || config.tie_word_embeddings;
  return isTied && name === LANGUAGE_HEAD;
}

function checkNames(
  plans: readonly TensorPlan[],
  { state, config }: { readonly state: ModelGguf['state']; readonly config: Config },
): void {
  const planned = new Set(plans.map(({ source }) => source));
  const missing = [...planned].filter((name) => !state.has(name));
  const strange = [...state.keys()].filter(
    (name) => !planned.has(name) && !isUnneeded(config, name),
  );
  if (missing.length + strange.length > 0) {
    const found = strange.length === 0 ? '' : ` It has others: ${firstOf(strange)}.`;
    throw new GgufModelError(
      `modelGguf: expected the weights of a ${config.model_type} as config.json has it${missing.length === 0 ? '' : `, got none of ${firstOf(missing)}`}.${found}`,
    );
  }
}

/** Up to three names, and how many more there are. */
export function firstOf(names: readonly string[]): string {
  const shown = names.slice(0, 3).join(', ');
  return names.length > 3 ? `${shown} and ${names.length - 3} more` : shown;
}
