// A model to make text with: whole on its device, or at rest off it.

import { availableParallelism } from 'node:os';
import { resolve } from 'node:path';
import {
  generate,
  KeyValueCache,
  longestRow,
  type ModelConfig,
  type Module,
  nextLogits,
  streamStateDict,
  type TokenArgs,
} from '@shardweave/nn';
import { materialize } from '@shardweave/nn/flat';
import { loadStateDict, OffloadBudgetError, OffloadModel } from '@shardweave/offload';
import { Device, type Tensor } from '@shardweave/tensor-core';
import { loadTokenizer, type Tokenizer } from '../data/tokenizer.js';
import { UsageError } from '../errors.js';
import { resolveDevices } from '../launch/adapter-probe.js';
import { findAdapter, readAdapter } from '../model/adapter-directory.js';
import { findModelDirectory, readModelConfig, withModelState } from '../model/model-directory.js';
import { DeviceHost } from '../rank/device-host.js';
import {
  COMPUTE_DTYPES,
  deferredModel,
  type ModelChoice,
  withWeights,
} from '../rank/strategies/model-parts.js';
import { tokenizerName } from '../resolve-config.js';
import type { Precision } from '../run-config.js';
import type { GenerateFlags } from './generate-flags.js';

export interface TextModel extends AsyncDisposable {
  readonly tokenizer: Tokenizer;
  /** Most tokens that it is shown. */
  readonly positions: number;
  /**
   * The tokens that follow a prompt, up to an end or begin token. What the prompt has in common with the text
   * before it is not run again.
   * @throws {UsageError} for a prompt that is too long
   */
  continue(prompt: readonly number[]): AsyncGenerator<number, void, undefined>;
}

/** @param options.entry the script that looks for a GPU */
export async function openTextModel(
  flags: GenerateFlags,
  options: { readonly entry: string },
): Promise<TextModel> {
  const config = await readChoice(flags);
  const tokenizerOf = tokenizerName(flags, config.model, config.modelConfig);
  const tokenizer = await loadTokenizer(tokenizerOf, config.model.path);
  const [kind] = await resolveDevices([flags.device], options.entry);
  const host = new DeviceHost();
  try {
    const backend = await host.open(kind === 'webgpu' ? 'webgpu' : 'cpu', {
      threads: flags.threads ?? availableParallelism(),
      dtype: COMPUTE_DTYPES[config.precision],
    });
    const device = new Device(backend);
    const model = await loadModel(device, config, flags);
    return makeTextModel({ host, device, model: model.eval(), config, tokenizer, flags });
  } catch (error) {
    await host[Symbol.asyncDispose]();
    throw error;
  }
}

type Choice = ModelChoice & { readonly model: { readonly path: string } };

async function readChoice(flags: GenerateFlags): Promise<Choice> {
  if (flags.deviceBudget !== undefined && flags.strategy !== 'offload') {
    throw new UsageError(
      '--device-budget is for --strategy offload. Add that, or leave the budget out.',
    );
  }
  const directory = findModelDirectory(resolve(flags.model));
  if (directory?.hasWeights !== true) {
    throw new UsageError(
      `--model: expected a directory with config.json and weights, got ${flags.model}. Train one first, or give that of a model.`,
    );
  }
  const modelConfig = await readModelConfig(directory.path);
  const adapter = flags.adapter === undefined ? undefined : findAdapter(flags.adapter);
  const found = adapter === undefined ? undefined : await readAdapter(adapter);
  const lora = found && { ...found, targets: found.layers, directory: adapter };
  return {
    model: { kind: 'directory', ...directory },
    modelConfig,
    lora,
    precision: flags.precision ?? (await precisionOf(directory.path, modelConfig)),
    seed: 0,
  };
}

/** The 16 bits of a model's files, where all weights have them. */
function precisionOf(directory: string, config: ModelConfig): Promise<Precision> {
  return withModelState(directory, config, async (state) => {
    const [dtype, ...others] = new Set([...state.values()].map(({ dtype }) => dtype));
    const isNarrow = others.length === 0 && (dtype === 'f16' || dtype === 'bf16');
    return isNarrow ? (dtype === 'f16' ? 'fp16' : 'bf16') : 'fp32';
  });
}

async function loadModel(
  device: Device,
  config: Choice,
  { strategy, deviceBudget }: GenerateFlags,
): Promise<Module<TokenArgs, Tensor>> {
  const model = deferredModel(device, config);
  if (config.lora === undefined) {
    model.to(COMPUTE_DTYPES[config.precision]); // adapters have frozen theirs so already
    for (const parameter of model.parameters()) {
      parameter.requiresGrad = false;
    }
  }
  if (strategy === 'single') {
    await withWeights(model, config, (state, how) => streamStateDict(model, state, how));
    materialize(model);
    return model;
  }
  const offload = new OffloadModel<TokenArgs, Tensor>(model, {
    computeDType: COMPUTE_DTYPES[config.precision],
    ...(deviceBudget === undefined ? {} : { deviceBudgetBytes: deviceBudget }),
  });
  await withWeights(model, config, (state, how) => loadStateDict(offload, state, how));
  return offload;
}

/** Turns a budget that nothing fits in into the user's mistake. */
async function* explained(
  tokens: AsyncGenerator<number, void, undefined>,
): AsyncGenerator<number, void, undefined> {
  try {
    yield* tokens;
  } catch (cause) {
    if (cause instanceof OffloadBudgetError) {
      throw new UsageError(`--device-budget: ${cause.message}`, { cause });
    }
    throw cause;
  }
}

function makeTextModel(parts: {
  readonly host: DeviceHost;
  readonly device: Device;
  readonly model: Module<TokenArgs, Tensor>;
  readonly config: Choice;
  readonly tokenizer: Tokenizer;
  readonly flags: GenerateFlags;
}): TextModel {
  const { host, device, model, config, tokenizer, flags } = parts;
  const { maxTokens, temperature, topK, topP, minP, seed } = flags;
  const positions = longestRow(config.modelConfig);
  const stop = [...tokenizer.endTokens, tokenizer.beginToken].filter((id) => id !== undefined);
  let cache: KeyValueCache | undefined;
  return {
    tokenizer,
    positions,
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
      // A conversation outgrows its cache now and then, and runs again as a whole.
      const needed = Math.min(positions, prompt.length + maxTokens);
      if (cache === undefined || cache.capacity < needed) {
        cache?.dispose();
        const capacity = Math.min(positions, cache === undefined ? needed : 2 * needed);
        cache = new KeyValueCache(device, { capacity });
      }
      const options = { maxTokens, temperature, topK, topP, minP, seed, stop };
      const context = cache.capacity;
      return explained(generate(nextLogits(model, { cache }), prompt, { ...options, context }));
    },
    async [Symbol.asyncDispose]() {
      cache?.dispose();
      model.dispose();
      device.dispose();
      await host[Symbol.asyncDispose]();
    },
  };
}
