// Draws a token from one row of logits. This happens on the host, since one row is too little work
// for a device.

import {
  above,
  atLeast,
  checkOptions,
  type OptionRules,
  optional,
  whole,
} from '../check-options.js';
import { NnConfigError } from '../errors.js';

/** Options of drawToken. They apply in this order, each to the tokens that the one before left. */
export interface SamplingOptions {
  /**
   * Logits are divided by it. Below 1 it makes likely tokens even likelier; with 0 the likeliest
   * token is always taken. Default 1.
   */
  readonly temperature?: number | undefined;
  /** Keeps only this many of the likeliest tokens. Default: all. */
  readonly topK?: number | undefined;
  /**
   * Keeps only as many of the likeliest tokens as are needed to reach this probability together.
   * Default 1, which keeps all.
   */
  readonly topP?: number | undefined;
  /**
   * Keeps only tokens that are at least this many times as probable as the likeliest. Default 0,
   * which keeps all.
   */
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
 * Draws a token by the softmax of logits / temperature. Of equal logits that of the lower token
 * counts as likelier.
 * @param logits one for each token, [vocab]
 * @param uniform a random number in [0, 1) that decides
 * @throws {NnConfigError} where a logit is not a number, where there are none, and for options out
 * of range
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
    return below === 0 ? 1 : Math.exp(below / temperature); // infinite logits would give 0 / 0
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

/**
 * Keys are logit * TOKEN_RANGE + token: a double has 53 bits, a logit takes 32 of them, and the
 * token has the other 21.
 */
const TOKEN_RANGE = 2 ** 21;

/**
 * The `count` likeliest tokens, likeliest first. Each token is sorted as one number, with the
 * logit's bits above the token's. That takes a tenth of the time that a comparison function takes.
 */
function likeliest(logits: Float32Array, count: number): number[] {
  if (count === 1) {
    return [logits.reduce((best, logit, token) => (logit > logits[best]! ? token : best), 0)];
  }
  const bits = new Int32Array(logits.buffer, logits.byteOffset, logits.length);
  const keys = Float64Array.from(bits, (word, token) => {
    // The bits of floats, as integers, have the order of the floats, except that negative ones are
    // reversed.
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
