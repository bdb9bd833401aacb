// Text from the trained model, on one rank alone.

import { generate, KeyValueCache, type Module, nextLogits, type TokenArgs } from '@shardweave/nn';
import type { Device, Tensor } from '@shardweave/tensor-core';
import type { Tokenizer } from '../data/tokenizer.js';
import type { RunConfig } from '../run-config.js';

/** A paragraph of bytes, or a longer one of words. */
const COUNT = 240;
const TEMPERATURE = 0.8;
const TOP_K = 40;
/** A large model on a CPU shows what it has by then. */
const LONGEST_MS = 10_000;

export interface TextSample {
  readonly prompt: string;
  readonly text: string;
}

/** @param model the whole model, in evaluation: ids [1, seq] (u32) to logits [1, seq, vocab] */
export async function sampleText(
  device: Device,
  model: Module<TokenArgs, Tensor>,
  options: { readonly config: RunConfig; readonly tokenizer: Tokenizer },
): Promise<TextSample> {
  const { config, tokenizer } = options;
  const prompt = config.dataFile === undefined ? 'Call me Ishmael. ' : '\n';
  const context = config.seq;
  using cache = new KeyValueCache(device, { capacity: context });
  const started = performance.now();
  const tokens: number[] = [];
  const drawn = generate(nextLogits(model, { cache }), tokenizer.encode(prompt), {
    temperature: TEMPERATURE,
    topK: TOP_K,
    maxTokens: COUNT,
    context,
    seed: config.seed,
    stop: tokenizer.endTokens,
  });
  for await (const token of drawn) {
    tokens.push(token);
    if (performance.now() - started > LONGEST_MS) {
      break;
    }
  }
  return { prompt, text: tokenizer.decode(tokens) };
}
