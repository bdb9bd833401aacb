// The options of a GPT-2, with the names of Hugging Face's config.json.

import {
  above,
  checkOptions,
  given,
  type OptionRules,
  oneOf,
  optional,
  PROBABILITY,
  whole,
} from './check-options.js';
import { NnConfigError } from './errors.js';

/** GPT-2's configuration, all fields resolved, under the names that config.json of the Hub has. */
export interface Gpt2Config {
  readonly model_type: 'gpt2';
  readonly vocab_size: number;
  /** Longest sequence. */
  readonly n_positions: number;
  /** Width. */
  readonly n_embd: number;
  readonly n_layer: number;
  readonly n_head: number;
  /** Width of the feed-forward layer; null: 4 * n_embd. */
  readonly n_inner: number | null;
  readonly layer_norm_epsilon: number;
  /** Dropout on the sum of the embeddings. */
  readonly embd_pdrop: number;
  /** Dropout on the attention weights. */
  readonly attn_pdrop: number;
  /** Dropout on what each branch adds to the residual stream. */
  readonly resid_pdrop: number;
  /** 'gelu_new' is the approximation by tanh, 'gelu' the exact one. */
  readonly activation_function: 'gelu_new' | 'gelu';
  /** Standard deviation of the initial weights. */
  readonly initializer_range: number;
}

/** What config.json leaves out: the values of the smallest published GPT-2. */
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
const GIVEN_RULES = Object.fromEntries(
  Object.entries(RULES).map(([name, rule]) => [name, optional(rule)]),
) as unknown as OptionRules<Gpt2Config>;

/**
 * Fills in defaults and checks each value.
 * @throws {NnConfigError} naming the field
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

/** Trainable numbers of a model, the tied head once. */
export function gpt2ParameterCount(config: Gpt2Config): number {
  const { vocab_size: vocab, n_positions: positions, n_layer: layers, n_embd: width } = config;
  const inner = config.n_inner ?? 4 * width;
  const attention = 4 * width * width + 4 * width;
  const mlp = 2 * width * inner + inner + width;
  const norms = 4 * width;
  return (vocab + positions) * width + layers * (attention + mlp + norms) + 2 * width;
}
