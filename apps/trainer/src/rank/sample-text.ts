// Text from the trained model, on one rank alone.

import type { Module, TokenArgs } from '@shardweave/nn';
import { type Device, slice, type Tensor } from '@shardweave/tensor-core';
import type { Tokenizer } from '../data/tokenizer.js';
import { sampleTokens } from '../model/sampling.js';
import type { RunConfig } from '../run-config.js';
import { splitMix32 } from '../seeded-random.js';

/** A paragraph of bytes, or a longer one of words. */
const COUNT = 240;
const TEMPERATURE = 0.8;
const TOP_K = 40;
/** A large model on a CPU shows what it has by then. */
const LONGEST_MS = 10_000;
/** Keeps these draws apart from those of the row order. */
const STREAM = 0x5a;

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
  const { vocab_size: vocab } = config.modelConfig;
  const prompt = config.dataFile === undefined ? 'Call me Ishmael. ' : '\n';
  const draw = splitMix32(config.seed, STREAM);
  const context = config.seq;
  const logitsAfter = (tokens: Uint32Array) =>
    device.noGrad(() =>
      device.scope(async () => {
        // Always full length, so that buffers repeat; what follows can't be seen from before.
        const ids = new Uint32Array(context);
        ids.set(tokens);
        const logits = await model.call(device.tensor(ids, [1, context], { tag: 'staging' }));
        const at = { axis: 1, start: tokens.length - 1, end: tokens.length };
        const values = await slice(logits, at).toArray(); // [1, 1, vocab]
        return Float32Array.from(values.subarray(0, vocab));
      }),
    );
  const started = performance.now();
  const tokens = await sampleTokens(tokenizer.encode(prompt), logitsAfter, {
    temperature: TEMPERATURE,
    topK: TOP_K,
    count: COUNT,
    context,
    uniform: () => draw() / 2 ** 32,
    isOver: () => performance.now() - started > LONGEST_MS,
  });
  return { prompt, text: tokenizer.decode(tokens) };
}
