// What a GPT-2's config.json asks for.

import { GPT2_DEFAULTS, type Gpt2Config, resolveGpt2Config } from '../gpt2-config.js';
import { type ConfigFields, ownFields } from './config-fields.js';

/** Fields of config.json that change the computation, with the values this model computes. */
const FIXED: ConfigFields = {
  tie_word_embeddings: true,
  scale_attn_weights: true,
  scale_attn_by_inverse_layer_idx: false,
  reorder_and_upcast_attn: false,
  add_cross_attention: false,
};

/** Tokens that tokenizers know, a head for classes that is not here, and what older files have. */
const HARMLESS: ReadonlySet<string> = new Set([
  ...['bos_token_id', 'eos_token_id', 'pad_token_id', 'num_labels', '_num_labels', 'output_past'],
  ...['summary_activation', 'summary_first_dropout', 'summary_proj_to_labels', 'summary_type'],
  ...['summary_use_proj', 'n_special', 'predict_special_tokens'],
]);

const OWN: ReadonlySet<string> = new Set(Object.keys(GPT2_DEFAULTS));

/**
 * The model's options from the fields of config.json.
 * @throws {FormatError} naming a field that asks for what is not computed here, or that nobody
 * knows
 * @throws {NnConfigError} for values that cannot work
 */
export function readGpt2Config(fields: ConfigFields): Gpt2Config {
  const { n_positions: positions = GPT2_DEFAULTS.n_positions } = fields;
  const options = ownFields(fields, {
    own: OWN,
    // How many positions older files mask, which are all that there are.
    fixed: { ...FIXED, n_ctx: positions, pruned_heads: {} },
    isHarmless: (name) => HARMLESS.has(name),
  });
  return resolveGpt2Config(options as Partial<Gpt2Config>);
}

/** The fields of config.json. */
export function gpt2ConfigFields(config: Gpt2Config): ConfigFields {
  return {
    architectures: ['GPT2LMHeadModel'],
    ...FIXED,
    ...config,
    n_ctx: config.n_positions, // older readers ask for it
  };
}
