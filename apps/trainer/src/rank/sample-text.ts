// Makes text with the model as it rests: on one rank alone or, where each rank has a shard,
// on all together, of which the first leads. No second model is loaded for it.

import type { ProcessGroup } from '@shardweave/collectives';
import {
  generate,
  KeyValueCache,
  type LogitsAfter,
  type ModelConfig,
  nextLogits,
  parameterCount,
} from '@shardweave/nn';
import { byteSize, type Device } from '@shardweave/tensor-core';
import type { Tokenizer } from '../data/tokenizer.js';
import type { RunConfig } from '../run-config.js';
import { COMPUTE_DTYPES } from '../run-config.js';
import { countParameters } from '../task/text-config.js';
import type { TextModel } from './strategies/strategy.js';

/** The most tokens: a paragraph of bytes, or a longer one of words. */
const MOST_TOKENS = 240;
const LEAST_TOKENS = 16;
/**
 * A run trains on so many tokens for each that it writes, since a token that is drawn alone takes
 * as long as a dozen of a batch: a run of a step or two, which only tries a line, soon ends.
 */
const TRAINED_FOR_EACH = 16;
/**
 * The most parameters that are read for a text, since each token reads all of them; this takes
 * about ten seconds of a CPU.
 */
const MOST_READS = 16e9;
/**
 * The most bytes that a rank gathers for a text, since each token gathers the whole model; this
 * takes some ten seconds over sockets of one machine.
 */
const MOST_GATHERED = 2 ** 29;
const TEMPERATURE = 0.8;
const TOP_K = 40;

export interface TextSample {
  readonly prompt: string;
  readonly text: string;
}

/** What a text costs, and what the run has cost. */
export interface SampleCosts {
  /** What a rank gathers for each token. Where it is too much for a text, there is none. */
  readonly gatheredBytes?: number;
  /** The tokens on which the run trains. */
  readonly trainedTokens?: number;
}

/**
 * The number of tokens that a model writes: fewer where it is large or its run is short, and as
 * many on a slow machine as on a fast one.
 */
export function sampleLength(
  config: ModelConfig,
  { gatheredBytes = 0, trainedTokens = Number.POSITIVE_INFINITY }: SampleCosts = {},
): number {
  const read = Math.floor(MOST_READS / parameterCount(config));
  const affordable = Math.min(read, Math.floor(trainedTokens / TRAINED_FOR_EACH));
  const most = Math.min(MOST_TOKENS, Math.max(LEAST_TOKENS, affordable));
  const gathered = Math.floor(MOST_GATHERED / gatheredBytes);
  return gathered < LEAST_TOKENS ? 0 : Math.min(most, gathered);
}

/** What a rank gathers for each token of a text. */
export function gatheredBytes(
  { modelConfig, precision }: Pick<RunConfig, 'modelConfig' | 'precision'>,
  { group }: Pick<TextModel, 'group'>,
): number {
  const wholeBytes = countParameters(modelConfig) * byteSize(COMPUTE_DTYPES[precision]);
  return group === undefined ? 0 : wholeBytes * (1 - 1 / group.worldSize);
}

export interface SampleOptions {
  readonly device: Device;
  readonly config: Pick<RunConfig, 'data' | 'samplePrompt' | 'seq' | 'seed'>;
  /** At least one. */
  readonly maxTokens: number;
  /** Opens the tokenizer, which only the first rank needs. */
  readonly openTokenizer: () => Promise<Tokenizer>;
  /** Whether the first rank gives the text up; it is asked behind each token. */
  readonly isGivenUp?: () => boolean;
}

/**
 * Collective where the model has a group.
 * @returns undefined on all ranks of the group but the first, and where the text was given up
 */
export async function sampleText(
  { model, group }: TextModel,
  { device, config, maxTokens, openTokenizer, isGivenUp }: SampleOptions,
): Promise<TextSample | undefined> {
  const context = config.seq;
  using cache = new KeyValueCache(device, { capacity: context });
  const logitsAfter = nextLogits(model.eval(), { cache });
  if (group !== undefined && group.rank > 0) {
    await follow(group, logitsAfter, context);
    return undefined;
  }
  let isFollowed = true; // whether the other ranks wait for tokens, and not in the model
  const lead: LogitsAfter = async (seen) => {
    await share(group, seen, context);
    isFollowed = false;
    const logits = await logitsAfter(seen);
    isFollowed = true;
    return logits;
  };
  try {
    const tokenizer = await openTokenizer();
    const usual = config.data === undefined ? 'Call me Ishmael. ' : '\n';
    const prompt = config.samplePrompt ?? usual;
    const tokens: number[] = [];
    const drawn = generate(lead, tokenizer.encode(prompt), {
      temperature: TEMPERATURE,
      topK: TOP_K,
      maxTokens,
      context,
      seed: config.seed,
      stop: tokenizer.endTokens,
    });
    for await (const token of drawn) {
      tokens.push(token);
      if (isGivenUp?.() === true) {
        return undefined;
      }
    }
    return { prompt, text: tokenizer.decode(tokens) };
  } finally {
    await (isFollowed ? share(group, [], context) : group?.abort('the text failed'));
  }
}

/** Runs the model on whatever the first rank runs it on, whose device may draw other tokens. */
async function follow(group: ProcessGroup, logitsAfter: LogitsAfter, context: number) {
  for (;;) {
    const seen = await share(group, [], context);
    if (seen.length === 0) {
      return;
    }
    await logitsAfter(seen);
  }
}

/** The first rank's tokens, at most `context`; none at the end. Collective. */
async function share(
  group: ProcessGroup | undefined,
  tokens: readonly number[],
  context: number,
): Promise<readonly number[]> {
  if (group === undefined) {
    return tokens;
  }
  const sent = new Uint32Array(1 + context);
  sent.set([tokens.length, ...tokens]);
  await group.broadcast(new Uint8Array(sent.buffer), { root: 0, tag: 'text' });
  return [...sent.subarray(1, 1 + sent[0]!)];
}
