// Draws a token from one row of logits, on the host: one token at a time is nothing to compute.

import {
  above,
  atLeast,
  checkOptions,
  type OptionRules,
  optional,
  whole,
} from '../check-options.js';
import { NnConfigError } from '../errors.js';

/** Rules apply in this order, each to what the one before left. */
export interface SamplingOptions {
  /**
   * What logits are divided by: below 1, likelier tokens still more often; 0: always the likeliest.
   * Default 1.
   */
  readonly temperature?: number | undefined;
  /** Only this many of the likeliest tokens. Default all. */
  readonly topK?: number | undefined;
  /** Only as many of the likeliest as together reach this probability. Default 1. */
  readonly topP?: number | undefined;
  /** Only those at least this many times as probable as the likeliest. Default 0. */
  readonly minP?: number | undefined;
}

export const SAMPLING_RULES: OptionRules<SamplingOptions> = {
  temperature: optional(atLeast(0)),
  topK: optional(whole(1)),
  topP: optional({
    expected: 'a number above 0, at most 1',
    holds: (value) => above(0).holds(value) && (value as number) <= 1,
  }),
  minP: optional({
    expected: 'a number in [0, 1]',
    holds: (value) => atLeast(0).holds(value) && (value as number) <= 1,
  }),
};

/**
 * A token by the softmax of logits / temperature, [vocab]; `uniform` in [0, 1) decides. Of equal
 * logits the lower token comes first.
 * @throws {NnConfigError} where a logit is not a number
 */
export function drawToken(
  logits: Float32Array,
  uniform: number,
  options: SamplingOptions = {},
): number {
  checkOptions('drawToken', options, SAMPLING_RULES);
  const { temperature = 1, topK = logits.length, topP = 1, minP = 0 } = options;
  if (logits.length === 0 || logits.some(Number.isNaN)) {
    throw new NnConfigError(
      'drawToken: expected logits that are numbers, got none or NaN. The model that made them is broken, or its dtype too narrow.',
    );
  }
  const order = likeliest(logits, temperature === 0 ? 1 : topK);
  if (order.length === 1) {
    return order[0]!;
  }
  const most = logits[order[0]!]!;
  const weightOf = (token: number) => {
    const below = logits[token]! - most;
    return below === 0 ? 1 : Math.exp(below / temperature); // 0 / 0 where logits are infinite
  };
  const weights = Float64Array.from(order, weightOf);
  const total = sumOf(weights);
  let count = 1;
  for (let reached = weights[0]!; count < weights.length && reached < topP * total; count++) {
    reached += weights[count]!;
  }
  while (weights[count - 1]! < minP) {
    count -= 1;
  }
  let left = uniform * sumOf(weights.subarray(0, count));
  for (let i = 0; i < count; i++) {
    left -= weights[i]!;
    if (left < 0) {
      return order[i]!;
    }
  }
  return order[count - 1]!;
}

/** What a key holds below the logit: a double has 53 bits, and a logit 32 of them. */
const TOKEN_RANGE = 2 ** 21;

/**
 * The `count` likeliest tokens, likeliest first. Tokens are sorted as numbers, a logit's bits above
 * the token's, which takes a tenth of the time that a comparison function does.
 */
function likeliest(logits: Float32Array, count: number): number[] {
  if (count === 1) {
    return [logits.reduce((best, logit, token) => (logit > logits[best]! ? token : best), 0)];
  }
  const bits = new Int32Array(logits.buffer, logits.byteOffset, logits.length);
  const keys = Float64Array.from(bits, (word, token) => {
    // Bits of floats are in the order of the floats, but for the sign's.
    const rank = logits[token] === 0 ? 0 : word < 0 ? -(word & 0x7fffffff) : word;
    return -rank * TOKEN_RANGE + token;
  }).sort();
  return Array.from(
    keys.subarray(0, count),
    (key) => key - Math.floor(key / TOKEN_RANGE) * TOKEN_RANGE,
  );
}

function sumOf(weights: Float64Array): number {
  return weights.reduce((sum, weight) => sum + weight, 0);
}
