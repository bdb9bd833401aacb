// The config.json of a GPT-2, read and written.

import { GPT2_DEFAULTS, type Gpt2Config, resolveGpt2Config } from '../gpt2-config.js';
import { type ConfigFields, ownFields } from './config-fields.js';

const ARCHITECTURE = 'GPT2LMHeadModel';

/** Fields that would change the computation, each with the value that this model computes. */
const FIXED: ConfigFields = {
  tie_word_embeddings: true,
  scale_attn_weights: true,
  scale_attn_by_inverse_layer_idx: false,
  reorder_and_upcast_attn: false,
  add_cross_attention: false,
};

/**
 * Fields that change nothing: ids of special tokens, options of a classification head that does not
 * exist here, and some that only older files have.
 */
const HARMLESS: ReadonlySet<string> = new Set([
  ...['bos_token_id', 'eos_token_id', 'pad_token_id', 'num_labels', '_num_labels', 'output_past'],
  ...['summary_activation', 'summary_first_dropout', 'summary_proj_to_labels', 'summary_type'],
  ...['summary_use_proj', 'n_special', 'predict_special_tokens'],
]);

const OWN: ReadonlySet<string> = new Set(Object.keys(GPT2_DEFAULTS));

/**
 * Reads a GPT-2's configuration from the fields of its config.json.
 * @throws {FormatError} naming a field that is unknown, or that asks for a computation that GPT-2
 * here does not do
 * @throws {NnConfigError} naming a field whose value cannot work
 */
export function readGpt2Config(fields: ConfigFields): Gpt2Config {
  const { n_positions: positions = GPT2_DEFAULTS.n_positions } = fields;
  const options = ownFields(fields, {
    architectures: [ARCHITECTURE, 'GPT2Model'], // without a head, which is the token table
    own: OWN,
    // Older files have n_ctx, the number of positions that attention sees. It must be all of them.
    fixed: { ...FIXED, n_ctx: positions, pruned_heads: {} },
    isHarmless: (name) => HARMLESS.has(name),
  });
  return resolveGpt2Config(options as Partial<Gpt2Config>);
}

/** The fields of the config.json that describes a GPT-2. */
export function gpt2ConfigFields(config: Gpt2Config): ConfigFields {
  return {
    architectures: [ARCHITECTURE],
    ...FIXED,
    ...config,
    n_ctx: config.n_positions, // older readers need it
  };
}
