// Opens a model that is not trained: whole on its device, or at rest off it.

import { availableParallelism } from 'node:os';
import type { ModelConfig, Module } from '@shardweave/nn';
import { materialize } from '@shardweave/nn/flat';
import { OffloadBudgetError, OffloadModel } from '@shardweave/offload';
import { Device, LimitError } from '@shardweave/tensor-core';
import { UsageError } from '../errors.js';
import { isGgufFile } from '../files/gguf-model.js';
import { resolveDevices } from '../launch/adapter-probe.js';
import { findAdapter, readAdapter } from '../model/adapter-directory.js';
import { findWeights, withModelState } from '../model/model-directory.js';
import { configFor, ownHead, readTextModel, requireHead, usualTask } from '../model/text-model.js';
import { DeviceHost } from '../rank/device-host.js';
import type { TaskModule } from '../rank/objectives/objective.js';
import type { ModelChoice } from '../rank/strategies/model-choice.js';
import { loadWeights, putBaseAtRest } from '../rank/strategies/model-parts.js';
import { type Body, deferredBody, withHead } from '../rank/strategies/task-model.js';
import { COMPUTE_DTYPES, type Precision } from '../run-config.js';
import { isLanguage, resolveHead, type TaskHead } from '../task/task-head.js';
import { languageConfig, type TextConfig } from '../task/text-config.js';
import type { OpenFlags } from './generate-flags.js';

/** A model in evaluation mode, with frozen weights. */
export interface OpenModel extends AsyncDisposable {
  readonly device: Device;
  readonly model: TaskModule;
}

/** What flags choose: a directory with weights, and how to compute with it. */
export type OpenChoice = ModelChoice & {
  readonly model: { readonly path: string };
  readonly modelConfig: TextConfig;
  readonly head: TaskHead;
};

/**
 * @param options.entry the script that looks for a GPU
 * @param options.quantizeActivations as CpuBackendOptions has it
 */
export async function openModel(
  config: OpenChoice,
  flags: OpenFlags,
  options: { readonly entry: string; readonly quantizeActivations?: boolean },
): Promise<OpenModel> {
  const { entry, quantizeActivations = false } = options;
  const [choice] = await resolveDevices([flags.device], entry);
  const host = new DeviceHost();
  try {
    const backend = await host.open(choice!, {
      threads: flags.threads ?? availableParallelism(),
      products: flags.products,
      quantizeActivations,
    });
    const device = new Device(backend);
    const model = (await loadModel(device, config, flags)).eval();
    return {
      device,
      model,
      async [Symbol.asyncDispose]() {
        model.dispose();
        device.dispose();
        await host[Symbol.asyncDispose]();
      },
    };
  } catch (error) {
    await host[Symbol.asyncDispose]();
    throw error;
  }
}

/**
 * @param task what the model is opened for; undefined: what its files say
 * @throws {UsageError} where there is no such model, or the flags don't go together
 */
export async function readChoice(
  flags: OpenFlags,
  task: TaskHead['kind'] | undefined,
): Promise<OpenChoice> {
  if (flags.deviceBudget !== undefined && flags.strategy !== 'offload') {
    throw new UsageError(
      '--device-budget is for --strategy offload. Add that, or leave the budget out.',
    );
  }
  const path = findWeights(flags.model);
  const { config, own } = await readTextModel(path);
  const adapter = flags.adapter === undefined ? undefined : findAdapter(flags.adapter);
  const head = await ownHead(own, adapter);
  const kind = task ?? usualTask(config, head);
  const modelConfig = configFor(kind, config);
  requireHead(kind, flags.adapter ?? path, head);
  const found = adapter === undefined ? undefined : await readAdapter(adapter);
  const lora = found && { ...found, targets: found.layers, directory: adapter };
  return {
    model: { kind: 'directory', path, hasWeights: true },
    modelConfig,
    head: resolveHead({ task: kind, pooling: undefined }, modelConfig, head),
    lora,
    precision:
      flags.precision ??
      (isLanguage(kind) ? await precisionOf(path, languageConfig(modelConfig), flags) : 'fp32'),
    seed: 0,
  };
}

/**
 * The 16-bit dtype of a model's files, where all weights that could have it do. Over blocks it is
 * f32, in which most numbers of a block are exact; rounding each would take as long again. So it is
 * for a GGUF file in f16, into which many models are put whose activations overflow in f16.
 */
async function precisionOf(
  directory: string,
  config: ModelConfig,
  { baseType }: OpenFlags,
): Promise<Precision> {
  if (baseType !== undefined) {
    return 'fp32';
  }
  const isGguf = isGgufFile(directory);
  return withModelState(directory, config, async (state) => {
    const weights = [...state].filter(([name, { shape }]) => !isGguf || !isF32InGguf(name, shape));
    const [dtype, ...others] = new Set(weights.map(([, weight]) => weight.dtype));
    if (others.length > 0 || (isGguf && dtype === 'f16')) {
      return 'fp32';
    }
    return dtype === 'f16' ? 'fp16' : dtype === 'bf16' ? 'bf16' : 'fp32';
  });
}

/** Whether a GGUF file has a weight in f32 whatever its type: vectors, and GPT-2's positions. */
function isF32InGguf(name: string, shape: readonly number[]): boolean {
  return shape.length < 2 || name.endsWith('wpe.weight');
}

async function loadModel(
  device: Device,
  config: OpenChoice,
  { strategy, deviceBudget, baseType }: OpenFlags,
): Promise<TaskModule> {
  const body = deferredBody(device, config);
  if (config.lora === undefined) {
    body.to(COMPUTE_DTYPES[config.precision]); // adapters have frozen theirs already
    freeze(body);
  }
  await putBaseAtRest(body, { model: config.model, baseType });
  const model = withHead(
    strategy === 'single' ? body : offloaded(body, config, deviceBudget),
    config,
  );
  freeze(model);
  await loadWeights(model, config);
  await materialize(model);
  return model;
}

function freeze(model: Module): void {
  for (const parameter of model.parameters()) {
    parameter.requiresGrad = false;
  }
}

function offloaded(body: Body, config: OpenChoice, deviceBudget: number | undefined): TaskModule {
  const computeDType = COMPUTE_DTYPES[config.precision];
  return new OffloadModel(
    body,
    deviceBudget === undefined
      ? { computeDType }
      : { computeDType, deviceBudgetBytes: deviceBudget },
  );
}

/** Turns a budget that is too small into the user's mistake. */
export function explainBudget(cause: unknown, { deviceBudget }: OpenFlags): unknown {
  const isOverBudget =
    cause instanceof OffloadBudgetError ||
    (cause instanceof LimitError && cause.limitBytes === deviceBudget);
  return isOverBudget ? new UsageError(`--device-budget: ${cause.message}`, { cause }) : cause;
}
