// The config.json of any supported model. Its model_type says which model's fields it has.

import { checkOptions, oneOf, optional } from '../../check-options.js';
import { FormatError } from '../../errors.js';
import type { ModelConfig } from '../model-config.js';
import type { ConfigFields } from './config-fields.js';
import { decoderConfigFields, readDecoderConfig } from './decoder-config-file.js';
import { gpt2ConfigFields, readGpt2Config } from './gpt2-config-file.js';

const READERS: Readonly<Record<ModelConfig['model_type'], (fields: ConfigFields) => ModelConfig>> =
  {
    gpt2: readGpt2Config,
    llama: readDecoderConfig,
    qwen2: readDecoderConfig,
    qwen3: readDecoderConfig,
  };

/**
 * Reads a model's configuration from the text of its config.json. A file without a model_type is a
 * GPT-2's.
 * @throws {FormatError} for text that is not a JSON object, for an unsupported model_type, and for
 * a field that is unknown or asks for a computation that the model here does not do
 * @throws {NnConfigError} naming a field that is missing, or whose value cannot work
 */
export function parseModelConfig(text: string): ModelConfig {
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch (error) {
    throw new FormatError('config.json: expected JSON.', { cause: error });
  }
  if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) {
    throw new FormatError('config.json: expected an object.');
  }
  const fields = parsed as ConfigFields;
  const { model_type: type = 'gpt2' } = fields;
  if (typeof type !== 'string' || !Object.hasOwn(READERS, type)) {
    throw new FormatError(
      `config.json: expected model_type to be ${Object.keys(READERS).join(', ')}, got ${JSON.stringify(type)}. Other models are not supported.`,
    );
  }
  return READERS[type as ModelConfig['model_type']](fields);
}

/** The dtypes in which a model's files can store floats. */
export type WeightsDType = 'f32' | 'bf16' | 'f16';

/** The names of these dtypes in config.json. */
const TORCH_DTYPES = {
  f32: 'float32',
  bf16: 'bfloat16',
  f16: 'float16',
} satisfies Record<WeightsDType, string>;

/**
 * The text of the config.json that describes a model. `dtype` is that of the weights beside it;
 * default f32.
 */
export function modelConfigText(
  config: ModelConfig,
  options: { readonly dtype?: WeightsDType } = {},
): string {
  checkOptions('modelConfigText', options, {
    dtype: optional(oneOf(...Object.keys(TORCH_DTYPES))),
  });
  const fields =
    config.model_type === 'gpt2' ? gpt2ConfigFields(config) : decoderConfigFields(config);
  const torchDType = TORCH_DTYPES[options.dtype ?? 'f32'];
  return `${JSON.stringify({ ...fields, torch_dtype: torchDType }, undefined, 2)}\n`;
}
