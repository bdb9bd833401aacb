// The options of a GPT-2, under the names of the Hub's config.json.

import {
  above,
  allOptional,
  checkOptions,
  given,
  type OptionRules,
  oneOf,
  PROBABILITY,
  whole,
} from '../check-options.js';
import { NnConfigError } from '../errors.js';

/** GPT-2's configuration with every field resolved, under the names of the Hub's config.json. */
export interface Gpt2Config {
  readonly model_type: 'gpt2';
  readonly vocab_size: number;
  /** The most tokens that a sequence can have. */
  readonly n_positions: number;
  /** The width of the model. */
  readonly n_embd: number;
  readonly n_layer: number;
  readonly n_head: number;
  /** The width of the feed-forward layer; null stands for 4 * n_embd. */
  readonly n_inner: number | null;
  readonly layer_norm_epsilon: number;
  /** The probability of dropping an element of the embeddings' sum in training. */
  readonly embd_pdrop: number;
  /** The probability of dropping an attention weight in training. */
  readonly attn_pdrop: number;
  /**
   * The probability of dropping an element of a layer's result in training, before it is added to
   * the residual.
   */
  readonly resid_pdrop: number;
  /** GELU by the approximation with tanh ('gelu_new') or exactly ('gelu'). */
  readonly activation_function: 'gelu_new' | 'gelu';
  /** The standard deviation of the initial weights. */
  readonly initializer_range: number;
}

/**
 * The values of fields that config.json leaves out, which are those of the smallest published
 * GPT-2.
 */
export const GPT2_DEFAULTS: Gpt2Config = {
  model_type: 'gpt2',
  vocab_size: 50257,
  n_positions: 1024,
  n_embd: 768,
  n_layer: 12,
  n_head: 12,
  n_inner: null,
  layer_norm_epsilon: 1e-5,
  embd_pdrop: 0.1,
  attn_pdrop: 0.1,
  resid_pdrop: 0.1,
  activation_function: 'gelu_new',
  initializer_range: 0.02,
};

const COUNT = whole(1);
const POSITIVE = above(0);

const RULES: OptionRules<Gpt2Config> = {
  model_type: oneOf('gpt2'),
  vocab_size: COUNT,
  n_positions: COUNT,
  n_embd: COUNT,
  n_layer: COUNT,
  n_head: COUNT,
  n_inner: {
    expected: `null or ${COUNT.expected}`,
    holds: (value) => value === null || COUNT.holds(value),
  },
  layer_norm_epsilon: POSITIVE,
  embd_pdrop: PROBABILITY,
  attn_pdrop: PROBABILITY,
  resid_pdrop: PROBABILITY,
  activation_function: oneOf('gelu_new', 'gelu'),
  initializer_range: POSITIVE,
};
const GIVEN_RULES: OptionRules<Gpt2Config> = allOptional(RULES);

/**
 * Checks a configuration and fills in its defaults.
 * @throws {NnConfigError} naming the field that cannot work
 */
export function resolveGpt2Config(options: Partial<Gpt2Config>): Gpt2Config {
  checkOptions('gpt2', options, GIVEN_RULES);
  const config = { ...GPT2_DEFAULTS, ...given(options) };
  const { n_embd: width, n_head: heads } = config;
  if ((width / heads) % 2 !== 0) {
    throw new NnConfigError(
      `gpt2: expected n_head to be a divisor of n_embd (${width}) that leaves an even head width, got ${heads}.`,
    );
  }
  return config;
}

/** The number of trainable values of a model. The tied head counts once. */
export function gpt2ParameterCount(config: Gpt2Config): number {
  const { vocab_size: vocab, n_positions: positions, n_layer: layers, n_embd: width } = config;
  const inner = config.n_inner ?? 4 * width;
  const attention = 4 * width * width + 4 * width;
  const mlp = 2 * width * inner + inner + width;
  const norms = 4 * width;
  return (vocab + positions) * width + layers * (attention + mlp + norms) + 2 * width;
}
