// Draws a token from one row of logits. This happens on the host, since one row is too little work
// for a device.

import { exp64 } from '@shardweave/dtypes/float64';
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
  const best = likeliestOf(logits);
  if (temperature === 0 || topK === 1) {
    return best;
  }
  const most = logits[best]!;
  const weightOf = (token: number) => {
    const logit = logits[token]!;
    return logit === most ? 1 : exp64((logit - most) / temperature); // Infinity - Infinity is NaN
  };
  if (topK >= logits.length && topP === 1 && minP === 0) {
    return drawFromAll({ numTokens: logits.length, best, uniform }, weightOf);
  }
  const ranking = new Ranking(logits, most, temperature);
  let count = Math.min(topK, logits.length);
  let kept = 0;
  for (let i = 0; i < count; i++) {
    kept += weightOf(count < logits.length ? ranking.at(i) : i); // the sum of all needs no order
  }
  if (topP < 1 || minP > 0) {
    const [all, enough] = [count, topP * kept];
    kept = 1;
    for (count = 1; count < all && kept < enough; count++) {
      const weight = weightOf(ranking.at(count));
      if (weight < minP) {
        break;
      }
      kept += weight;
    }
  }
  let left = uniform * kept;
  for (let i = 0; i < count; i++) {
    left -= weightOf(ranking.at(i));
    if (left < 0) {
      return ranking.at(i);
    }
  }
  return ranking.at(count - 1);
}

/** The tokens whose weights are added up before they are compared with what is drawn. */
const RUN = 256;

/**
 * Draws in the order of the vocabulary. Where no token is left out, ranks would cost more than the
 * draw.
 */
function drawFromAll(
  {
    numTokens,
    best,
    uniform,
  }: { readonly numTokens: number; readonly best: number; readonly uniform: number },
  weightOf: (token: number) => number,
): number {
  const sums = new Float64Array(Math.ceil(numTokens / RUN));
  for (let run = 0; run < sums.length; run++) {
    const end = Math.min(numTokens, (run + 1) * RUN);
    let sum = 0;
    for (let token = run * RUN; token < end; token++) {
      sum += weightOf(token);
    }
    sums[run] = sum;
  }
  let left = uniform * sums.reduce((total, sum) => total + sum, 0);
  let run = 0;
  while (run < sums.length - 1 && left >= sums[run]!) {
    left -= sums[run]!;
    run += 1;
  }
  let drawn = best;
  for (let token = run * RUN; token < numTokens && left >= 0; token++) {
    const weight = weightOf(token);
    left -= weight;
    drawn = weight > 0 ? token : drawn; // a sum is rounded, so that the last may leave something
  }
  return drawn;
}

/** The likeliest token. @throws {NnConfigError} where a logit is not a number, or there are none */
function likeliestOf(logits: Float32Array): number {
  let best = 0;
  let hasNaN = logits.length === 0;
  for (let token = 0; token < logits.length; token++) {
    const logit = logits[token]!;
    hasNaN ||= Number.isNaN(logit);
    if (logit > logits[best]!) {
      best = token;
    }
  }
  if (hasNaN) {
    throw new NnConfigError(
      'drawToken: expected logits that are numbers, got none or NaN. The model that made them is broken, or its dtype too narrow.',
    );
  }
  return best;
}

/** So many buckets lie between weights that differ by a factor of e, and so many are there. */
const PER_FACTOR = 128;
const NUM_BUCKETS = 4096;

/**
 * Tokens by likelihood. A draw looks at a few of the first out of 150,000, so tokens are only
 * counted into buckets by their distance from the likeliest one, and a bucket is sorted when a draw
 * comes to it.
 */
class Ranking {
  readonly #logits: Float32Array;
  /** The tokens of each bucket behind those of the one before. */
  readonly #tokens: Uint32Array;
  readonly #ends: Uint32Array;
  #numSorted = 0;
  #nextBucket = 0;

  constructor(logits: Float32Array, most: number, temperature: number) {
    this.#logits = logits;
    const [tokens, ends] = [new Uint32Array(logits.length), new Uint32Array(NUM_BUCKETS)];
    this.#tokens = tokens;
    this.#ends = ends;
    const scale = PER_FACTOR / temperature;
    const buckets = new Uint16Array(logits.length);
    for (let token = 0; token < logits.length; token++) {
      // What is not a number, such as the distance between infinities, becomes 0.
      const bucket = Math.min(NUM_BUCKETS - 1, (most - logits[token]!) * scale) | 0;
      buckets[token] = bucket;
      ends[bucket]! += 1;
    }
    let start = 0;
    for (let i = 0; i < NUM_BUCKETS; i++) {
      const count = ends[i]!;
      ends[i] = start;
      start += count;
    }
    for (let token = 0; token < buckets.length; token++) {
      tokens[ends[buckets[token]!]!++] = token;
    }
  }

  /** The token that is likelier than all but `index` others; of equal ones the lower is. */
  at(index: number): number {
    while (index >= this.#numSorted) {
      const end = this.#ends[this.#nextBucket++]!;
      const logits = this.#logits;
      this.#tokens.subarray(this.#numSorted, end).sort((a, b) => logits[b]! - logits[a]! || a - b);
      this.#numSorted = end;
    }
    return this.#tokens[index]!;
  }
}
