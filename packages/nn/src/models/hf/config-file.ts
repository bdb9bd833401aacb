// The config.json of any supported model. Its model_type says which model's fields it has.

import { FormatError } from '../../errors.js';
import type { ModelConfig } from '../model-config.js';
import type { ConfigFields } from './config-fields.js';
import { configText, parseConfigText, type WeightsDType } from './config-text.js';
import { decoderConfigFields, readDecoderConfig } from './decoder-config-file.js';
import { gpt2ConfigFields, readGpt2Config } from './gpt2-config-file.js';

const READERS: Readonly<Record<ModelConfig['model_type'], (fields: ConfigFields) => ModelConfig>> =
  {
    gpt2: readGpt2Config,
    llama: readDecoderConfig,
    qwen2: readDecoderConfig,
    qwen3: readDecoderConfig,
    smollm3: readDecoderConfig,
    gemma3_text: readDecoderConfig,
  };

/**
 * Reads a model's configuration from the text of its config.json. A file without a model_type is a
 * GPT-2's.
 * @throws {FormatError} for text that is not a JSON object, for an unsupported model_type, and for
 * a field that is unknown or asks for a computation that the model here does not do
 * @throws {NnConfigError} naming a field that is missing, or whose value cannot work
 */
export function parseModelConfig(text: string): ModelConfig {
  return readModelConfig(parseConfigText(text));
}

/** Reads a model's configuration from the fields of its config.json. */
export function readModelConfig(fields: ConfigFields): ModelConfig {
  const { model_type: type = 'gpt2' } = fields;
  if (typeof type !== 'string' || !Object.hasOwn(READERS, type)) {
    throw new FormatError(
      `config.json: expected model_type to be ${Object.keys(READERS).join(', ')}, got ${JSON.stringify(type)}. Other models are not supported.`,
    );
  }
  return READERS[type as ModelConfig['model_type']](fields);
}

/**
 * The text of the config.json that describes a model. `dtype` is that of the weights beside it;
 * default f32.
 */
export function modelConfigText(
  config: ModelConfig,
  options: { readonly dtype?: WeightsDType } = {},
): string {
  return configText('modelConfigText', modelConfigFields(config), options);
}

/** The fields of the config.json that describes a model. */
export function modelConfigFields(config: ModelConfig): ConfigFields {
  return config.model_type === 'gpt2' ? gpt2ConfigFields(config) : decoderConfigFields(config);
}
