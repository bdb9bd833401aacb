// The options of a GPT-2, with the names of Hugging Face's config.json.

import { NnConfigError } from './errors.js';

export interface Gpt2Config {
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

/**
 * Fills in defaults and checks each value.
 * @throws {NnConfigError} naming the field
 */
export function resolveGpt2Config(options: Partial<Gpt2Config>): Gpt2Config {
  const given = Object.entries(options).filter(([, value]) => value !== undefined);
  const config = { ...GPT2_DEFAULTS, ...(Object.fromEntries(given) as Partial<Gpt2Config>) };
  for (const name of ['vocab_size', 'n_positions', 'n_embd', 'n_layer', 'n_head'] as const) {
    check(
      name,
      config[name],
      Number.isSafeInteger(config[name]) && config[name] > 0,
      'a whole number above 0',
    );
  }
  const { n_inner: inner, n_embd: width, n_head: heads } = config;
  check(
    'n_inner',
    inner,
    inner === null || (Number.isSafeInteger(inner) && inner > 0),
    'null or a whole number above 0',
  );
  check(
    'n_head',
    heads,
    (width / heads) % 2 === 0,
    `a divisor of n_embd (${width}) that leaves an even head width`,
  );
  for (const name of ['embd_pdrop', 'attn_pdrop', 'resid_pdrop'] as const) {
    check(name, config[name], config[name] >= 0 && config[name] < 1, 'a probability in [0, 1)');
  }
  for (const name of ['layer_norm_epsilon', 'initializer_range'] as const) {
    check(
      name,
      config[name],
      Number.isFinite(config[name]) && config[name] > 0,
      'a number above 0',
    );
  }
  const { activation_function: activation } = config;
  check(
    'activation_function',
    activation,
    ['gelu_new', 'gelu'].includes(activation),
    "'gelu_new' or 'gelu'",
  );
  return config;
}

function check(name: string, value: unknown, isValid: boolean, expected: string): void {
  if (isValid) return;
  throw new NnConfigError(
    `gpt2: expected ${name} to be ${expected}, got ${JSON.stringify(value)}.`,
  );
}
