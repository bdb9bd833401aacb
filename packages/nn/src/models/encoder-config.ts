// The options of an encoder, under the names of the Hub's config.json.

import {
  above,
  allOptional,
  checkOptions,
  FLAG,
  given,
  type OptionRules,
  oneOf,
  PROBABILITY,
  whole,
} from '../check-options.js';
import { NnConfigError } from '../errors.js';

/**
 * An encoder's configuration with every field resolved, under the names of the Hub's config.json.
 * MiniLM, BGE and E5 are configurations of BERT, and say so by their model_type.
 */
export interface EncoderConfig {
  readonly model_type: 'bert';
  readonly vocab_size: number;
  /** The width of the model. */
  readonly hidden_size: number;
  readonly num_hidden_layers: number;
  /** The number of heads, a divisor of hidden_size that leaves heads of an even width. */
  readonly num_attention_heads: number;
  /** The width of the feed-forward layer. */
  readonly intermediate_size: number;
  /** GELU exactly, by erf ('gelu'), or by the approximation with tanh ('gelu_new'). */
  readonly hidden_act: 'gelu' | 'gelu_new';
  /**
   * The probability of dropping, in training, an element of the embeddings, or of a layer's result
   * before it is added to the residual.
   */
  readonly hidden_dropout_prob: number;
  /** The probability of dropping an attention weight in training. */
  readonly attention_probs_dropout_prob: number;
  /** The most tokens that a text can have, special ones included. */
  readonly max_position_embeddings: number;
  /** The number of token types: 2 where a text and another one share a row. */
  readonly type_vocab_size: number;
  /** The standard deviation of the initial weights. */
  readonly initializer_range: number;
  readonly layer_norm_eps: number;
  /** The id of the padding token. Tokenizers use it; the model itself does not. */
  readonly pad_token_id: number | null;
  /**
   * Whether the model has a pooler, whose row for a text many classifiers begin with. This is an
   * argument of BertModel: the Hub's files have no such field, and their weights tell.
   */
  readonly add_pooling_layer: boolean;
}

/**
 * The values of fields that config.json leaves out, which are those of the smaller BERT of its
 * paper.
 */
export const ENCODER_DEFAULTS: EncoderConfig = {
  model_type: 'bert',
  vocab_size: 30522,
  hidden_size: 768,
  num_hidden_layers: 12,
  num_attention_heads: 12,
  intermediate_size: 3072,
  hidden_act: 'gelu',
  hidden_dropout_prob: 0.1,
  attention_probs_dropout_prob: 0.1,
  max_position_embeddings: 512,
  type_vocab_size: 2,
  initializer_range: 0.02,
  layer_norm_eps: 1e-12,
  pad_token_id: 0,
  add_pooling_layer: false,
};

const COUNT = whole(1);
const POSITIVE = above(0);

const RULES: OptionRules<EncoderConfig> = allOptional({
  model_type: oneOf('bert'),
  vocab_size: COUNT,
  hidden_size: COUNT,
  num_hidden_layers: COUNT,
  num_attention_heads: COUNT,
  intermediate_size: COUNT,
  hidden_act: oneOf('gelu', 'gelu_new'),
  hidden_dropout_prob: PROBABILITY,
  attention_probs_dropout_prob: PROBABILITY,
  max_position_embeddings: COUNT,
  type_vocab_size: COUNT,
  initializer_range: POSITIVE,
  layer_norm_eps: POSITIVE,
  pad_token_id: {
    expected: "a token's id, or null",
    holds: (value) => value === null || whole(0).holds(value),
  },
  add_pooling_layer: FLAG,
});

/**
 * Checks a configuration and fills in its defaults.
 * @throws {NnConfigError} naming the field that cannot work
 */
export function resolveEncoderConfig(options: Partial<EncoderConfig>): EncoderConfig {
  checkOptions('encoder', options, RULES);
  const config = { ...ENCODER_DEFAULTS, ...given(options) };
  const { hidden_size: width, num_attention_heads: heads } = config;
  if ((width / heads) % 2 !== 0) {
    throw new NnConfigError(
      `encoder: expected num_attention_heads to be a divisor of hidden_size (${width}) that leaves an even head width, got ${heads}.`,
    );
  }
  return config;
}

/** The number of trainable values of an encoder, with its pooler's where it has one. */
export function encoderParameterCount(config: EncoderConfig): number {
  const { hidden_size: width, intermediate_size: inner } = config;
  const rows = config.vocab_size + config.max_position_embeddings + config.type_vocab_size;
  const norm = 2 * width;
  const square = width * width + width;
  const block = 4 * square + 2 * width * inner + inner + width + 2 * norm;
  const pooler = config.add_pooling_layer ? square : 0;
  return rows * width + norm + config.num_hidden_layers * block + pooler;
}
