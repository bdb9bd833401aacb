// The configuration of a model that a run trains: a language model's or, for embedding and
// classification, an encoder's too.

import { longestRow, type ModelConfig, parameterCount } from '@shardweave/nn';
import { type EncoderConfig, encoderParameterCount } from '@shardweave/nn/embedding';

export type TextConfig = ModelConfig | EncoderConfig;

export function isEncoder(config: TextConfig): config is EncoderConfig {
  return config.model_type === 'bert';
}

/** The configuration of a model that writes text, which is all that the task `lm` has. */
export function languageConfig(config: TextConfig): ModelConfig {
  if (isEncoder(config)) {
    throw new TypeError('An encoder is no language model.');
  }
  return config;
}

/** The number of a model's values without the head that a task puts on it. */
export function countParameters(config: TextConfig): number {
  return isEncoder(config) ? encoderParameterCount(config) : parameterCount(config);
}

/** The most tokens of a row. */
export function longestTextRow(config: TextConfig): number {
  return isEncoder(config) ? config.max_position_embeddings : longestRow(config);
}

/** The width of a model's rows. */
export function widthOf(config: TextConfig): number {
  return config.model_type === 'gpt2' ? config.n_embd : config.hidden_size;
}

/** The number of a model's blocks, which lie between its first layer and what ends it. */
export function numBlocks(config: TextConfig): number {
  return config.model_type === 'gpt2' ? config.n_layer : config.num_hidden_layers;
}
