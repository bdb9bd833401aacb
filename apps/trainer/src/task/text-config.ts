// The configuration of a model that a run trains: a language model's or, for embedding and
// classification, an encoder's too.

import { longestRow, type ModelConfig, parameterCount } from '@shardweave/nn';
import { type EncoderConfig, encoderParameterCount } from '@shardweave/nn/embedding';

export type TextConfig = ModelConfig | EncoderConfig;

/** A module that people write, as far as a run has to know it; a dry device has told it. */
export interface ModuleConfig {
  readonly model_type: 'module';
  /** The number of tokens of the run's tokenizer, and of a row of them. */
  readonly vocab_size: number;
  readonly seq: number;
  readonly parameters: number;
  readonly blocks: number;
  /** Whether it has layers that can be sliced, as --strategy offload does. */
  readonly isSequential: boolean;
  /** The number of rows that the module has itself; absent where it takes those of --data. */
  readonly rows?: { readonly train: number; readonly valid: number | undefined } | undefined;
}

/** The configuration of whatever a run trains. */
export type TrainedConfig = TextConfig | ModuleConfig;

/** The configuration of a model of ours, which all commands but `train` and `plan` have. */
export function textConfig(config: TrainedConfig): TextConfig {
  if (config.model_type === 'module') {
    throw new TypeError('A module is no text model.');
  }
  return config;
}

export function isEncoder(config: TrainedConfig): config is EncoderConfig {
  return config.model_type === 'bert';
}

/** The configuration of a model that writes text, which is all that the task `lm` has. */
export function languageConfig(config: TrainedConfig): ModelConfig {
  const text = textConfig(config);
  if (isEncoder(text)) {
    throw new TypeError('An encoder is no language model.');
  }
  return text;
}

/** The number of a model's values without the head that a task puts on it. */
export function countParameters(config: TrainedConfig): number {
  if (config.model_type === 'module') {
    return config.parameters;
  }
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
export function numBlocks(config: TrainedConfig): number {
  if (config.model_type === 'module') {
    return config.blocks;
  }
  return config.model_type === 'gpt2' ? config.n_layer : config.num_hidden_layers;
}
