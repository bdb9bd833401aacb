// Makes text with the trained model, on one rank alone.

import {
  generate,
  KeyValueCache,
  type ModelConfig,
  type Module,
  nextLogits,
  parameterCount,
  type TokenArgs,
} from '@shardweave/nn';
import type { Device, Tensor } from '@shardweave/tensor-core';
import type { Tokenizer } from '../data/tokenizer.js';
import type { RunConfig } from '../run-config.js';

/** The most tokens: a paragraph of bytes, or a longer one of words. */
const MOST_TOKENS = 240;
const LEAST_TOKENS = 16;
/**
 * The most parameters that are read for a text, since each token reads all of them; this takes
 * about ten seconds of a CPU.
 */
const MOST_READS = 16e9;
const TEMPERATURE = 0.8;
const TOP_K = 40;

export interface TextSample {
  readonly prompt: string;
  readonly text: string;
}

/**
 * The number of tokens that a model writes: fewer where it is large, and as many on a slow machine
 * as on a fast one.
 */
export function sampleLength(config: ModelConfig): number {
  const affordable = Math.floor(MOST_READS / parameterCount(config));
  return Math.min(MOST_TOKENS, Math.max(LEAST_TOKENS, affordable));
}

/**
 * @param model the whole model, in evaluation mode: ids [1, seq] (u32) to logits [1, seq, vocab]
 */
export async function sampleText(
  device: Device,
  model: Module<TokenArgs, Tensor>,
  options: { readonly config: RunConfig; readonly tokenizer: Tokenizer },
): Promise<TextSample> {
  const { config, tokenizer } = options;
  const prompt = config.dataFile === undefined ? 'Call me Ishmael. ' : '\n';
  const context = config.seq;
  using cache = new KeyValueCache(device, { capacity: context });
  const tokens: number[] = [];
  const drawn = generate(nextLogits(model, { cache }), tokenizer.encode(prompt), {
    temperature: TEMPERATURE,
    topK: TOP_K,
    maxTokens: sampleLength(config.modelConfig),
    context,
    seed: config.seed,
    stop: tokenizer.endTokens,
  });
  for await (const token of drawn) {
    tokens.push(token);
  }
  return { prompt, text: tokenizer.decode(tokens) };
}
