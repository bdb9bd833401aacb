// Opens a model to make text with.

import { generate, KeyValueCache, NnConfigError, nextLogits } from '@shardweave/nn';
import { tokenizerName } from '../config/resolve-config.js';
import { loadTokenizer, stopTokens, type Tokenizer } from '../data/tokenizer.js';
import { UsageError } from '../errors.js';
import { longestTextRow } from '../task/text-config.js';
import type { GenerateFlags, OpenFlags } from './generate-flags.js';
import {
  explainBudget,
  type OpenChoice,
  type OpenModel,
  openModel,
  readChoice,
} from './open-model.js';

export interface TextModel extends AsyncDisposable {
  readonly tokenizer: Tokenizer;
  /** The most tokens that it can be shown. */
  readonly positions: number;
  /** Whether numbers of tokens are rounded to 8 bits, as beside blocks where nothing forbids it. */
  readonly isRounding: boolean;
  /**
   * The tokens that follow a prompt, up to an end or begin token. The beginning that the prompt
   * shares with the text before it is not run again.
   * @throws {UsageError} for a prompt that is too long
   */
  continue(prompt: readonly number[]): AsyncGenerator<number, void, undefined>;
}

/** How tokens are drawn. */
type Drawing = Pick<
  GenerateFlags,
  'maxTokens' | 'temperature' | 'topK' | 'topP' | 'minP' | 'repetitionPenalty' | 'seed'
>;

/**
 * @param options.entry the script that looks for a GPU
 * @param options.quantizeActivations as CpuBackendOptions has it
 */
export async function openTextModel(
  flags: OpenFlags & Drawing,
  options: { readonly entry: string; readonly quantizeActivations: boolean },
): Promise<TextModel> {
  const config = await readChoice(flags, 'lm');
  const tokenizerOf = tokenizerName(flags, config.model, config.modelConfig);
  const tokenizer = await loadTokenizer(tokenizerOf, config.model.path);
  const opened = await openModel(config, flags, options);
  return makeTextModel({ opened, config, tokenizer, flags, ...options });
}

/** Turns a budget that nothing fits, and weights that are no numbers, into the user's mistake. */
async function* explained(
  tokens: AsyncGenerator<number, void, undefined>,
  flags: OpenFlags,
): AsyncGenerator<number, void, undefined> {
  try {
    yield* tokens;
  } catch (cause) {
    if (cause instanceof NnConfigError) {
      throw new UsageError(
        `--model: ${flags.model} gives NaN for the next token. Its weights, or those of its adapters, are damaged, or --precision is too narrow for them.`,
        { cause },
      );
    }
    throw explainBudget(cause, flags);
  }
}

function makeTextModel(parts: {
  readonly opened: OpenModel;
  readonly config: OpenChoice;
  readonly tokenizer: Tokenizer;
  readonly flags: OpenFlags & Drawing;
  readonly quantizeActivations: boolean;
}): TextModel {
  const { opened, config, tokenizer, flags, quantizeActivations } = parts;
  const { device, model } = opened;
  const isRounding =
    quantizeActivations &&
    device.backend.info.kind === 'cpu' &&
    model.parameters().some(({ blocks }) => blocks !== undefined);
  const { maxTokens, temperature, topK, topP, minP, repetitionPenalty, seed } = flags;
  const positions = longestTextRow(config.modelConfig);
  const stop = stopTokens(tokenizer);
  let cache: KeyValueCache | undefined;
  return {
    tokenizer,
    positions,
    isRounding,
    continue(prompt) {
      if (prompt.length > positions) {
        throw new UsageError(
          `the prompt has ${prompt.length} tokens, and the model has ${positions} positions. Give a shorter one.`,
        );
      }
      const { vocab_size: words } = config.modelConfig;
      const foreign = prompt.find((token) => token >= words);
      if (foreign !== undefined) {
        throw new UsageError(
          `--tokenizer ${tokenizer.name}: the prompt has token ${foreign}, but the model's vocabulary ends at ${words - 1}. Choose another --tokenizer.`,
        );
      }
      // A conversation outgrows its cache now and then, and then runs again as a whole.
      const needed = Math.min(positions, prompt.length + maxTokens);
      if (cache === undefined || cache.capacity < needed) {
        cache?.dispose();
        const capacity = Math.min(positions, cache === undefined ? needed : 2 * needed);
        cache = new KeyValueCache(device, { capacity });
      }
      const how = { maxTokens, temperature, topK, topP, minP, repetitionPenalty, seed, stop };
      const options = { ...how, context: cache.capacity };
      return explained(generate(nextLogits(model, { cache }), prompt, options), flags);
    },
    async [Symbol.asyncDispose]() {
      cache?.dispose();
      await opened[Symbol.asyncDispose]();
    },
  };
}
