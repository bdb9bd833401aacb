// The text of a config.json, of any model: JSON, with the dtype of the weights beside it.

import { checkOptions, oneOf, optional } from '../../check-options.js';
import { FormatError } from '../../errors.js';
import type { ConfigFields } from './config-fields.js';

/** The dtypes in which a model's files can store floats. */
export type WeightsDType = 'f32' | 'bf16' | 'f16';

/** The names of these dtypes in config.json. */
const TORCH_DTYPES = {
  f32: 'float32',
  bf16: 'bfloat16',
  f16: 'float16',
} satisfies Record<WeightsDType, string>;

/** @throws {FormatError} for text that is not a JSON object */
export function parseConfigText(text: string): ConfigFields {
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch (error) {
    throw new FormatError('config.json: expected JSON.', { cause: error });
  }
  if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) {
    throw new FormatError('config.json: expected an object.');
  }
  return parsed as ConfigFields;
}

/** The text of a config.json with these fields, beside weights of a dtype. Default f32. */
export function configText(
  operation: string,
  fields: ConfigFields,
  options: { readonly dtype?: WeightsDType },
): string {
  checkOptions(operation, options, {
    dtype: optional(oneOf(...Object.keys(TORCH_DTYPES))),
  });
  const torchDType = TORCH_DTYPES[options.dtype ?? 'f32'];
  return `${JSON.stringify({ ...fields, torch_dtype: torchDType }, undefined, 2)}\n`;
}
