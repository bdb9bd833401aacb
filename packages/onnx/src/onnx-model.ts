// Writes an encoder as one ONNX file: a graph, and the weights in it. One tensor is in memory at a
// time.

import type { ModelFile } from '@shardweave/nn';
import {
  type EncoderConfig,
  parseEncoderConfig,
  parseSequenceClassifierConfig,
} from '@shardweave/nn/embedding';
import { encoderGraph } from './encoder-graph.js';
import { OnnxModelError, OnnxUsageError } from './errors.js';
import { floatTypeOf, type OnnxDType } from './layers.js';
import { type ModelState, ModelWeights } from './weights.js';

/** The tasks of transformers.js for which a model can be written. */
export type OnnxTask = 'feature-extraction' | 'text-classification';

/** An encoder to be written. */
export interface OnnxModel {
  /**
   * Its configuration, or the text of its config.json: for classification, that of a classifier,
   * whose `architectures` say so.
   */
  readonly config: EncoderConfig | string;
  /**
   * Its weights under the Hub's names, with or without the prefix `bert.`; f32, f16 or bf16.
   * Classification needs `pooler.dense` and `classifier`. Other heads are left out.
   */
  readonly state: ModelState;
}

/** The type of an ONNX file, and what its graph returns. */
export interface OnnxModelOptions {
  /**
   * f32; f16, in which everything is computed, too, but the outputs are f32; or q8: matrices in
   * 8 bits with a scale for 32 of them, the table of tokens with one a row, and the rest in f32.
   */
  readonly dtype: OnnxDType;
  /**
   * What the graph returns: last_hidden_state [batch, seq, hidden_size] for feature extraction, and
   * logits [batch, labels] for classification.
   */
  readonly task: OnnxTask;
}

/** The types of files, and transformers.js's names of these files. */
export const ONNX_FILES: Readonly<Record<OnnxDType, string>> = {
  f32: 'onnx/model.onnx',
  f16: 'onnx/model_fp16.onnx',
  q8: 'onnx/model_quantized.onnx',
};
const TASKS: readonly string[] = ['feature-extraction', 'text-classification'] satisfies OnnxTask[];

const PREFIX = 'bert.';
/** Heads, and the numbers 0, 1, 2 and so on, which older files have as a tensor. */
const FOREIGN = /^(cls\.|classifier\.|pooler\.|embeddings\.position_ids$)/;
/** Programs read a file of Protocol Buffers only below this size. */
const MAX_BYTES = 2 ** 31;

/**
 * The ONNX file of an encoder, under the name that it has in a folder for transformers.js: opset
 * 17, and MatMulNBits of onnxruntime for q8. Its inputs are input_ids, attention_mask and
 * token_type_ids, int64 [batch_size, sequence_length]. Tensors are read when their turn comes.
 * @throws {OnnxModelError} for weights that are not the configuration's, and for a file of 2 GiB or
 * more; its pieces throw it for a number beyond the type's range
 * @throws {OnnxUsageError} for an unknown type or task
 * @throws {NnError} for a config.json that can't be read
 * @example
 * ```ts
 * import { type OnnxModel, onnxModel } from '@shardweave/onnx';
 *
 * async function* quantized(model: OnnxModel) {
 *   yield* onnxModel(model, { dtype: 'q8', task: 'feature-extraction' }).pieces();
 * }
 * ```
 */
export function onnxModel(model: OnnxModel, options: OnnxModelOptions): ModelFile {
  const { dtype, task } = options;
  requireOneOf('dtype', dtype, Object.keys(ONNX_FILES));
  requireOneOf('task', task, TASKS);
  const { config } = model;
  const state = ownNames(model.state);
  const weights = new ModelWeights(state, floatTypeOf(dtype));
  const resolved = typeof config === 'string' ? encoderOf(config, task) : config;
  const labels = task === 'text-classification' ? numLabels(state) : undefined;
  const graph = encoderGraph(resolved, { weights, dtype, labels });
  checkNames(weights, task);
  const file = graph.file();
  if (file.byteLength >= MAX_BYTES) {
    const hint =
      dtype === 'q8' ? 'Larger models are not supported.' : "Write it as 'q8', or as 'f16'.";
    throw new OnnxModelError(
      `onnxModel: expected a file below ${MAX_BYTES} bytes, the limit of its format, got ${file.byteLength}. ${hint}`,
    );
  }
  return {
    name: ONNX_FILES[dtype],
    byteLength: file.byteLength,
    pieces: () => file.pieces(),
  };
}

/** The encoder that the text of a config.json describes. */
function encoderOf(text: string, task: OnnxTask): EncoderConfig {
  if (task === 'feature-extraction') {
    return parseEncoderConfig(text);
  }
  const { base } = parseSequenceClassifierConfig(text);
  if (base.model_type !== 'bert') {
    throw new OnnxModelError(
      `onnxModel: expected a classifier on an encoder (bert), got one on a ${base.model_type}. Decoders are not written.`,
    );
  }
  return base;
}

/** The number of labels of a classifier's weights. */
export function numLabels(state: ModelState): number {
  const weight = state.get('classifier.weight');
  if (weight === undefined) {
    throw new OnnxModelError(
      "onnxModel: expected 'classifier.weight' for text-classification, got none. Write an encoder without a classifier for feature-extraction.",
    );
  }
  const [labels = 0] = weight.shape;
  return labels;
}

function requireOneOf(option: string, value: string, known: readonly string[]): void {
  if (!known.includes(value)) {
    throw new OnnxUsageError(
      `onnxModel: expected ${option} to be ${known.join(', ')}, got ${JSON.stringify(value)}.`,
    );
  }
}

function ownNames(tensors: ModelState): ModelState {
  const bare = (name: string) => (name.startsWith(PREFIX) ? name.slice(PREFIX.length) : name);
  return new Map([...tensors].map(([name, tensor]) => [bare(name), tensor]));
}

function checkNames({ missing, unused }: ModelWeights, task: OnnxTask): void {
  const strange = unused.filter((name) => !FOREIGN.test(name));
  if (missing.length + strange.length > 0) {
    const found = strange.length === 0 ? '' : ` It has others: ${firstOf(strange)}.`;
    throw new OnnxModelError(
      `onnxModel: expected the weights of a bert for ${task}${missing.length === 0 ? '' : `, got none of ${firstOf(missing)}`}.${found}`,
    );
  }
}

/** Up to three names, and how many more there are. */
function firstOf(names: readonly string[]): string {
  const shown = names.slice(0, 3).join(', ');
  return names.length > 3 ? `${shown} and ${names.length - 3} more` : shown;
}
