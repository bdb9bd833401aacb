// What every strategy makes of a run's flags in the same way: the model's blocks, its first
// weights, and the optimizer.

import type { BlockType } from '@shardweave/dtypes/blocks';
import {
  AdamW,
  checkpoint,
  type LazyTensor,
  loadStateDict,
  type Module,
  quantizeBase,
  StateDictError,
} from '@shardweave/nn';
import { dropRecipe } from '@shardweave/nn/flat';
import { byteSize, type Device, type Tensor } from '@shardweave/tensor-core';
import { ggufBlockTypes, isGgufFile } from '../../files/gguf-model.js';
import { withAdapterState } from '../../model/adapter-directory.js';
import { isOfHead, withTaskState } from '../../model/text-model.js';
import { type Block, openOwnModel, ownBlocks } from '../../own-model/open-own-model.js';
import type { BaseType, RunConfig } from '../../run-config.js';
import { isLanguage } from '../../task/task-head.js';
import { textConfig } from '../../task/text-config.js';
import type { TaskModule } from '../objectives/objective.js';
import { isNumbers, type ModelChoice } from './model-choice.js';
import type { StrategyOptions } from './strategy.js';
import { type Body, blocksOf, deferredBody, withHead } from './task-model.js';

/** What a model is made of. */
type MadeOf = Pick<StrategyOptions, 'device' | 'config' | 'own'>;

/** The run's model, with its adapters where it has them; values come later. */
export async function deferredModel(device: Device, choice: ModelChoice): Promise<TaskModule> {
  const own = await openOwnModel(device, choice);
  return own?.module ?? withHead(deferredBody(device, choice), choice);
}

/** The run's transformer, whose frozen matrices rest as the run asks for. */
export async function restingBody(device: Device, choice: ModelChoice): Promise<Body> {
  const body = deferredBody(device, choice);
  if (choice.lora !== undefined) {
    await putBaseAtRest(body, { model: choice.model, baseType: choice.lora.baseType });
  }
  return body;
}

/** The run's model: the same with the task's head, or one that people have written. */
export async function restingModel({ device, config, own }: MadeOf): Promise<TaskModule> {
  return own?.module ?? withHead(await restingBody(device, config), config);
}

/**
 * Puts the frozen matrices of a model into the blocks that the run asks for, or that its file has
 * them in already.
 */
export async function putBaseAtRest(
  model: Module,
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
  model: Module,
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

/** The model's trained parameters: all of them, or adapters. */
export function trainedParameters(model: Module): Tensor[] {
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
export async function wholeModel(options: MadeOf): Promise<TaskModule> {
  const { config } = options;
  const model = await restingModel(options);
  await loadWeights(model, config);
  checkpointBlocks(modelBlocks(model, options), config);
  return model;
}

/** The parts of a run's model that are wrapped one by one. */
export function modelBlocks(model: Module, { own }: Pick<MadeOf, 'own'>): readonly Block[] {
  return own === undefined ? blocksOf(model) : ownBlocks(own.module);
}

/** Makes each block run again in backward, where the run asks for it. */
export function checkpointBlocks(
  blocks: readonly Block[],
  { checkpointActivations }: RunConfig,
): void {
  for (const { owner, name, module } of checkpointActivations ? blocks : []) {
    owner.replaceChild(name, checkpoint(module));
  }
}

/**
 * Loads the weights of the run's files, one tensor in memory at a time: those of the model
 * directory, and those of adapters.
 * @param model a model of deferredModel, wrapped or not
 */
export async function loadWeights(model: Module, choice: ModelChoice): Promise<void> {
  await loadBase(model, choice);
  await loadAdapters(model, choice);
}

/**
 * Loads those of the model directory. Where a model has adapters the files have not all of it, so
 * the load is strict only without adapters.
 */
export async function loadBase(
  model: Module,
  { model: source, modelConfig, head, lora }: ModelChoice,
): Promise<void> {
  if (source.kind === 'directory' && source.hasWeights && head.kind !== 'module') {
    await withTaskState(
      source.path,
      { modelConfig: textConfig(modelConfig), head },
      async (state) => {
        const isNew = (name: string) =>
          !isLanguage(head.kind) && isOfHead(name) && !state.has(name);
        const strict = lora === undefined && !model.namedParameters().some(([name]) => isNew(name));
        if (!strict) {
          requireBase(state, model, isNew);
        }
        await loadStateDict(model, state, { strict });
      },
    );
  }
}

/** Loads those of --adapter, where there is one. */
export async function loadAdapters(
  model: Module,
  { lora }: Pick<ModelChoice, 'lora'>,
): Promise<void> {
  if (lora?.directory !== undefined) {
    await withAdapterState(lora.directory, (state) =>
      loadStateDict(model, state, { strict: false }),
    );
  }
}

/**
 * @throws {StateDictError} where a file lacks a parameter that adapters or a new head stand beside,
 * or has one of another model
 */
function requireBase(
  state: ReadonlyMap<string, LazyTensor>,
  model: Module,
  isNew: (name: string) => boolean,
): void {
  const adapted = new Set(
    model
      .namedParameters()
      .map(([name]) => name)
      .filter((name) => /\.lora_[AB]\./.test(name)),
  );
  const all = model.namedParameters().map(([name]) => name);
  const names = new Set(all.filter((name) => !adapted.has(name) && !isNew(name)));
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
