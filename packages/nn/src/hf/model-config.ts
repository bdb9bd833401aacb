// config.json of every model that there is: its model_type says whose fields it has.

import type { DecoderConfig } from '../decoder/decoder-config.js';
import { FormatError } from '../errors.js';
import type { Gpt2Config } from '../gpt2-config.js';
import type { ConfigFields } from './config-fields.js';
import { decoderConfigFields, readDecoderConfig } from './decoder-config-file.js';
import { gpt2ConfigFields, readGpt2Config } from './gpt2-config-file.js';

/** A model's options, told apart by `model_type`. */
export type ModelConfig = Gpt2Config | DecoderConfig;

const READERS: Readonly<Record<ModelConfig['model_type'], (fields: ConfigFields) => ModelConfig>> =
  {
    gpt2: readGpt2Config,
    llama: readDecoderConfig,
    qwen2: readDecoderConfig,
    qwen3: readDecoderConfig,
  };

/**
 * A model's options from the text of its config.json; without a model_type it is a GPT-2.
 * @throws {FormatError} for text that is no config, and for one that asks for what is not computed
 * here
 * @throws {NnConfigError} for values that cannot work
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

/** The dtypes that floats of a model's files are written as. */
export type WeightsDType = 'f32' | 'bf16' | 'f16';

/** Their names in config.json. */
const TORCH_DTYPES = {
  f32: 'float32',
  bf16: 'bfloat16',
  f16: 'float16',
} satisfies Record<WeightsDType, string>;

/** The text of config.json. `dtype` is that of the weights beside it. */
export function modelConfigText(
  config: ModelConfig,
  options: { readonly dtype?: WeightsDType } = {},
): string {
  const fields =
    config.model_type === 'gpt2' ? gpt2ConfigFields(config) : decoderConfigFields(config);
  const torchDType = TORCH_DTYPES[options.dtype ?? 'f32'];
  return `${JSON.stringify({ ...fields, torch_dtype: torchDType }, undefined, 2)}\n`;
}
