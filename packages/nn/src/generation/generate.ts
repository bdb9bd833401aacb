// Continues a text token by token.

import { cast, Random, type Tensor } from '@shardweave/tensor-core';
import { above, checkOptions, having, optional, SEED, whole } from '../check-options.js';
import { NnConfigError } from '../errors.js';
import { type KeyValueCache, requireRoom } from '../layers/key-value-cache.js';
import type { TokenArgs } from '../models/token-options.js';
import type { Module } from '../module.js';
import { drawToken, SAMPLING_RULES, type SamplingOptions } from './sampling.js';

/** Computes the logits of the token that follows `tokens`, one for each entry of the vocabulary. */
export type LogitsAfter = (tokens: readonly number[]) => Promise<Float32Array>;

/**
 * Options of generate: how tokens are drawn, where the text ends, and how much of it the model
 * sees.
 */
export interface GenerateOptions extends SamplingOptions {
  /** The text ends after this many new tokens. */
  readonly maxTokens: number;
  /** The text ends where one of these tokens is drawn. That token is not part of it. */
  readonly stop?: readonly number[] | undefined;
  /** Equal seeds draw equal tokens. Default 0. */
  readonly seed?: number | undefined;
  /**
   * Most tokens that the model is shown at once. When the text grows beyond them, only the last
   * half of them stays in view, and the text before is forgotten. Default: no limit.
   */
  readonly context?: number | undefined;
  /**
   * Makes each token that the model is shown less likely, once however often it stands there: its
   * logit is divided by this number where it is above 0, and multiplied where it is below (Keskar
   * et al., "CTRL", 2019). Default 1, which changes nothing.
   */
  readonly repetitionPenalty?: number | undefined;
}

const STOP = {
  expected: 'a list of token ids',
  holds: (value: unknown) => Array.isArray(value) && value.every((id) => whole(0).holds(id)),
};

/**
 * Draws the tokens that follow `prompt` and gives each as soon as it is drawn.
 * @throws {NnConfigError} for options out of range and for an empty prompt, at the first token that
 * is asked for
 */
export async function* generate(
  logitsAfter: LogitsAfter,
  prompt: Iterable<number>,
  options: GenerateOptions,
): AsyncGenerator<number, void, undefined> {
  checkOptions<GenerateOptions>('generate', options, {
    ...SAMPLING_RULES,
    maxTokens: whole(0),
    stop: optional(STOP),
    seed: optional(SEED),
    context: optional(whole(1)),
    repetitionPenalty: optional(above(0)),
  });
  const {
    maxTokens,
    stop = [],
    seed = 0,
    context = Number.POSITIVE_INFINITY,
    repetitionPenalty = 1,
    ...sampling
  } = options;
  const tokens = [...prompt];
  if (tokens.length === 0) {
    throw new NnConfigError(
      'generate: expected a prompt of at least one token, got none. A text begins with the begin token.',
    );
  }
  const random = new Random(seed);
  let first = 0;
  for (let i = 0; i < maxTokens; i++) {
    if (tokens.length - first > context) {
      first = tokens.length - Math.ceil(context / 2);
    }
    random.begin({ step: i, rowOffset: 0 });
    const { key0, key1 } = random.nextKey();
    const uniform = ((key0 ^ key1) >>> 0) / 2 ** 32;
    const shown = tokens.slice(first);
    const logits = penalized(await logitsAfter(shown), shown, repetitionPenalty);
    const token = drawToken(logits, uniform, sampling);
    if (stop.includes(token)) {
      return;
    }
    tokens.push(token);
    yield token;
  }
}

function penalized(logits: Float32Array, shown: readonly number[], penalty: number): Float32Array {
  if (penalty === 1) {
    return logits;
  }
  const found = logits.slice();
  for (const token of new Set(shown)) {
    const logit = logits[token]!;
    found[token] = logit > 0 ? logit / penalty : logit * penalty;
  }
  return found;
}

/** Options of nextLogits: a cache, and how many tokens are run at once. */
export interface NextLogitsOptions {
  /**
   * Holds the keys and values of an earlier text. What the new text shares with the beginning of
   * that one is not run again. By default there is none, and the whole text is run each time.
   */
  readonly cache?: KeyValueCache | undefined;
  /**
   * Most tokens that one call of the model gets where there is a cache. A longer prompt is run in
   * several calls, which need the memory of one. Default 512.
   */
  readonly chunk?: number | undefined;
}

/**
 * With so many rows, matrix products are as fast as with more, and what a block allocates for them
 * is still small.
 */
const CHUNK = 512;

/**
 * A function that computes the logits after some tokens. With a cache the model runs only the
 * tokens that the cache does not hold yet, and they are held afterwards. Without one it runs all of
 * them each time. Put the model into evaluation first.
 * @param model maps ids [1, seq] (u32) to logits: a LanguageModel, or an OffloadModel of one
 */
export function nextLogits(
  model: Pick<Module<TokenArgs, Tensor>, 'call' | 'device'>,
  options: NextLogitsOptions = {},
): LogitsAfter {
  checkOptions<NextLogitsOptions>('nextLogits', options, {
    cache: optional(having('a KeyValueCache', 'append', 'truncate', 'layer')),
    chunk: optional(whole(1)),
  });
  const { device } = model;
  const { cache, chunk = CHUNK } = options;
  const run = (tokens: readonly number[]) =>
    device.noGrad(() =>
      device.scope(async () => {
        const ids = device.tensor(Uint32Array.from(tokens), [1, tokens.length], { tag: 'staging' });
        const logits = await model.call(ids, { cache, onlyLast: true }); // [1, 1, vocab]
        return (await cast(logits, 'f32').toArray()) as Float32Array; // the device casts faster
      }),
    );
  return async (tokens) => {
    if (cache === undefined) {
      return run(tokens);
    }
    requireRoom(tokens.length, cache.capacity); // before any part of the prompt runs
    cache.truncate(numShared(cache.tokens, tokens));
    for (;;) {
      const fresh = tokens.slice(cache.length, cache.length + chunk);
      const logits = await run(fresh);
      cache.append(fresh);
      if (cache.length === tokens.length) {
        return logits;
      }
    }
  };
}

/**
 * How many tokens at the beginning need not run again. The last token always runs, since its logits
 * are what is asked for.
 */
function numShared(held: readonly number[], tokens: readonly number[]): number {
  const most = Math.min(held.length, tokens.length - 1);
  let count = 0;
  while (count < most && held[count] === tokens[count]) {
    count += 1;
  }
  return count;
}
