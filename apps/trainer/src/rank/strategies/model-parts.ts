// What every strategy makes of a run's flags in the same way: the model's blocks, its first
// weights, and the optimizer.

import type { BlockType } from '@shardweave/dtypes/blocks';
import {
  AdamW,
  applyLora,
  checkpoint,
  type LanguageModel,
  type LazyTensor,
  loadStateDict,
  type Module,
  makeModel,
  NnConfigError,
  quantizeBase,
  StateDictError,
} from '@shardweave/nn';
import { dropRecipe } from '@shardweave/nn/flat';
import { byteSize, type Device, type Tensor } from '@shardweave/tensor-core';
import { UsageError } from '../../errors.js';
import { ggufBlockTypes, isGgufFile } from '../../files/gguf-model.js';
import { withAdapterState } from '../../model/adapter-directory.js';
import { withModelState } from '../../model/model-directory.js';
import type { BaseType, RunConfig } from '../../run-config.js';
import type { StrategyOptions } from './strategy.js';

/** The part of a run's config that decides its model and the model's first values. */
export type ModelChoice = Pick<RunConfig, 'model' | 'modelConfig' | 'lora' | 'precision' | 'seed'>;

/** The dtype of products for each precision. */
export const COMPUTE_DTYPES = { fp32: 'f32', fp16: 'f16', bf16: 'bf16' } as const;

/** The run's model, with its adapters where it has them; values come later. */
export function deferredModel(
  device: Device,
  { modelConfig, lora, precision, seed }: ModelChoice,
): LanguageModel {
  const model = makeModel(device, modelConfig, { seed, deferInit: true });
  if (lora !== undefined) {
    const { rank, alpha, dropout, targets, baseType } = lora;
    const baseDType = isNumbers(baseType) ? baseType : COMPUTE_DTYPES[precision];
    explainTargets(() => applyLora(model, { rank, alpha, dropout, targets, baseDType, seed }));
  }
  return model;
}

/** The same, whose frozen matrices rest as the run asks for. */
export async function restingModel(device: Device, choice: ModelChoice): Promise<LanguageModel> {
  const model = deferredModel(device, choice);
  if (choice.lora !== undefined) {
    await putBaseAtRest(model, { model: choice.model, baseType: choice.lora.baseType });
  }
  return model;
}

/**
 * Puts the frozen matrices of a model into the blocks that the run asks for, or that its file has
 * them in already.
 */
export async function putBaseAtRest(
  model: LanguageModel,
  {
    model: source,
    baseType,
  }: Pick<ModelChoice, 'model'> & { readonly baseType: BaseType | undefined },
): Promise<void> {
  if (isNumbers(baseType)) {
    return;
  }
  await quantizeAs(model, { source, type: baseType });
  // Values that are loaded next need not be drawn and encoded first.
  for (const parameter of source.kind === 'directory' && source.hasWeights
    ? model.parameters()
    : []) {
    if (parameter.blocks !== undefined) {
      dropRecipe(parameter);
    }
  }
}

async function quantizeAs(
  model: LanguageModel,
  { source, type }: { readonly source: ModelChoice['model']; readonly type: BlockType | undefined },
): Promise<void> {
  if (type !== undefined) {
    await quantizeBase(model, { type });
    return;
  }
  const isFile = source.kind === 'directory' && isGgufFile(source.path);
  const kept = isFile ? await ggufBlockTypes(source.path) : new Map<string, BlockType>();
  if (kept.size > 0) {
    await quantizeBase(model, { type: 'q8_0', select: (path) => kept.get(path) });
  }
}

/** Whether a base of the type rests as numbers, and not in blocks. */
function isNumbers(type: BaseType | undefined): type is 'f32' | 'f16' | 'bf16' {
  return type === 'f32' || type === 'f16' || type === 'bf16';
}

/** Turns a target that the model lacks into the user's mistake. */
function explainTargets(apply: () => void): void {
  try {
    apply();
  } catch (cause) {
    if (!(cause instanceof NnConfigError)) {
      throw cause;
    }
    throw new UsageError(
      `${cause.message} Give --lora-targets that the model has, or the --adapter of this model.`,
      { cause },
    );
  }
}

/** The model's trained parameters: all of them, or adapters. */
export function trainedParameters(model: LanguageModel): Tensor[] {
  return model.parameters().filter(({ requiresGrad }) => requiresGrad);
}

/** The bytes of parameters as they rest. */
export function bytesOf(parameters: readonly Tensor[]): number {
  return parameters.reduce((sum, parameter) => {
    const { size, dtype } = parameter.blocks?.words ?? parameter;
    return sum + size * byteSize(dtype);
  }, 0);
}

/** The whole model on one device, with the values of its files; materialize draws the others. */
export async function wholeModel({
  device,
  config,
}: Pick<StrategyOptions, 'device' | 'config'>): Promise<LanguageModel> {
  const model = await restingModel(device, config);
  await loadWeights(model, config);
  checkpointBlocks(model, config);
  return model;
}

/** Makes each block run again in backward, where the run asks for it. */
export function checkpointBlocks(model: LanguageModel, { checkpointActivations }: RunConfig): void {
  if (!checkpointActivations) {
    return;
  }
  for (const [i, block] of model.layers().slice(1, -1).entries()) {
    model.replaceChild(String(i + 1), checkpoint(block));
  }
}

/**
 * Loads the weights of the run's files, one tensor in memory at a time: those of the model
 * directory, and those of adapters. Where a model has adapters, neither file has all of it, so a
 * load is strict only without adapters.
 * @param model a model of deferredModel, wrapped or not
 */
export async function loadWeights(
  model: Module,
  { model: source, modelConfig, lora }: ModelChoice,
): Promise<void> {
  if (source.kind === 'directory' && source.hasWeights) {
    const strict = lora === undefined;
    await withModelState(source.path, modelConfig, async (state) => {
      if (!strict) {
        requireBase(state, model);
      }
      await loadStateDict(model, state, { strict });
    });
  }
  if (lora?.directory !== undefined) {
    await withAdapterState(lora.directory, (state) =>
      loadStateDict(model, state, { strict: false }),
    );
  }
}

/**
 * @throws {StateDictError} where a file lacks a parameter that adapters stand beside, or has one of
 * another model
 */
function requireBase(state: ReadonlyMap<string, LazyTensor>, model: Module): void {
  const frozen = model.namedParameters().filter(([, { requiresGrad }]) => !requiresGrad);
  const names = new Set(frozen.map(([name]) => name));
  const missing = [...names].filter((name) => !state.has(name));
  const unexpected = [...state.keys()].filter((name) => !names.has(name));
  if (missing.length + unexpected.length > 0) {
    throw new StateDictError(
      `expected the parameters of the base model. Missing: ${missing.join(', ') || 'none'}. Unexpected: ${unexpected.join(', ') || 'none'}.`,
      { missing, unexpected },
    );
  }
}

/**
 * AdamW for the parameters. Weight decay is for matrices and tables; gains and biases have none.
 */
export function adamW(parameters: readonly Tensor[], config: RunConfig): AdamW {
  const { lr, beta1, beta2, eps, weightDecay } = config;
  const groups = [
    { params: parameters.filter(({ rank }) => rank >= 2), weightDecay },
    { params: parameters.filter(({ rank }) => rank < 2), weightDecay: 0 },
  ];
  return new AdamW(groups, { lr, betas: [beta1, beta2], eps });
}
