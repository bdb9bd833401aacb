// Text from the trained model, on one rank alone: a plain copy of the model makes it.

import { Gpt2, loadStateDict, type Module } from '@shardweave/nn';
import { loadStateDict as loadOffloaded, OffloadModel } from '@shardweave/offload';
import { type Device, slice, type Tensor } from '@shardweave/tensor-core';
import type { Tokenizer } from '../data/tokenizer.js';
import type { ModelState } from '../model/model-directory.js';
import { sampleTokens } from '../model/sampling.js';
import type { RunConfig } from '../run-config.js';
import { splitMix32 } from '../seeded-random.js';
import { offloadOptions } from './training-model.js';

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

export async function sampleText(
  device: Device,
  state: ModelState,
  options: { readonly config: RunConfig; readonly tokenizer: Tokenizer },
): Promise<TextSample> {
  const { config, tokenizer } = options;
  const { vocab_size: vocab } = config.gpt2;
  const model = await evaluationModel(device, state, config);
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
  model.dispose();
  return { prompt, text: tokenizer.decode(tokens) };
}

/** A model that fits no device as a whole rests off it here too. */
async function evaluationModel(
  device: Device,
  state: ModelState,
  config: RunConfig,
): Promise<Module<[ids: Tensor], Tensor>> {
  if (config.strategy !== 'offload') {
    const model = new Gpt2(device, config.gpt2).eval();
    loadStateDict(model, state);
    return model;
  }
  const gpt2 = new Gpt2(device, config.gpt2, { deferInit: true }).eval();
  const options = { ...offloadOptions(config), numMicrobatches: 1, name: 'sample' };
  const model = new OffloadModel<[ids: Tensor], Tensor>(gpt2, options);
  await loadOffloaded(model, state);
  return model;
}
