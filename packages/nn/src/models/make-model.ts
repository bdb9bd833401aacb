// Makes any model that is called with token ids from its configuration.

import type { Device } from '@shardweave/tensor-core';
import { Decoder } from './decoder.js';
import { decoderParameterCount } from './decoder-parts.js';
import { Gpt2 } from './gpt2.js';
import { gpt2ParameterCount } from './gpt2-config.js';
import type { LanguageModel, LanguageModelOptions } from './language-model.js';
import type { ModelConfig } from './model-config.js';

/**
 * Makes the model that a configuration describes, with random initial weights.
 * @throws {NnConfigError} naming the field of the configuration that cannot work
 */
export function makeModel(
  device: Device,
  config: ModelConfig,
  options: LanguageModelOptions = {},
): LanguageModel {
  return config.model_type === 'gpt2'
    ? new Gpt2(device, config, options)
    : new Decoder(device, config, options);
}

/** The number of trainable values of a model. A tied head counts once. */
export function parameterCount(config: ModelConfig): number {
  return config.model_type === 'gpt2' ? gpt2ParameterCount(config) : decoderParameterCount(config);
}

/** The most tokens that a row can have where positions are not given. */
export function longestRow(config: ModelConfig): number {
  return config.model_type === 'gpt2' ? config.n_positions : config.max_position_embeddings;
}
