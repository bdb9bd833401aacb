// What a GPT-2's config.json asks for.

import { FormatError } from '../errors.js';
import { type Gpt2Config, resolveGpt2Config } from '../gpt2-config.js';
import type { ConfigFields } from './decoder-config-file.js';

/** Fields of config.json that change the computation, with the values this model computes. */
const FIXED = {
  model_type: 'gpt2',
  tie_word_embeddings: true,
  scale_attn_weights: true,
  scale_attn_by_inverse_layer_idx: false,
  reorder_and_upcast_attn: false,
  add_cross_attention: false,
} as const;

/**
 * The model's options from the fields of config.json; those it does not know are passed over.
 * @throws {FormatError} for those of a model that it does not compute
 * @throws {NnConfigError} for values that cannot work
 */
export function readGpt2Config(fields: ConfigFields): Gpt2Config {
  for (const [name, value] of Object.entries(FIXED)) {
    if (name in fields && fields[name] !== value) {
      throw new FormatError(
        `config.json: expected ${name} to be ${JSON.stringify(value)}, got ${JSON.stringify(fields[name])}. Other models are not supported.`,
      );
    }
  }
  return resolveGpt2Config(pickOptions(fields));
}

/** The fields of config.json. */
export function gpt2ConfigFields(config: Gpt2Config): ConfigFields {
  return {
    architectures: ['GPT2LMHeadModel'],
    ...FIXED,
    ...pickOptions(config as unknown as ConfigFields),
    n_ctx: config.n_positions, // older readers ask for it
  };
}

function pickOptions(fields: ConfigFields): Partial<Gpt2Config> {
  const names = [
    'vocab_size',
    'n_positions',
    'n_embd',
    'n_layer',
    'n_head',
    'n_inner',
    'layer_norm_epsilon',
    'embd_pdrop',
    'attn_pdrop',
    'resid_pdrop',
    'activation_function',
    'initializer_range',
  ] as const satisfies readonly (keyof Gpt2Config)[];
  return Object.fromEntries(
    names.filter((name) => name in fields).map((name) => [name, fields[name]]),
  ) as Partial<Gpt2Config>;
}
