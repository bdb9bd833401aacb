// What every strategy makes of a run's flags alike: the model's blocks, its first weights, the optimizer.

import {
  AdamW,
  checkpoint,
  type LanguageModel,
  type LazyTensor,
  makeModel,
  streamStateDict,
} from '@shardweave/nn';
import { materialize } from '@shardweave/nn/flat';
import type { Tensor } from '@shardweave/tensor-core';
import { withModelState } from '../../model/model-directory.js';
import type { RunConfig } from '../../run-config.js';
import type { StrategyOptions } from './strategy.js';

/** What products are computed from. */
export const COMPUTE_DTYPES = { fp32: 'f32', fp16: 'f16', bf16: 'bf16' } as const;

/** The model on one device as a whole, its values read or drawn. */
export async function wholeModel({ device, config }: StrategyOptions): Promise<LanguageModel> {
  const model = makeModel(device, config.modelConfig, { seed: config.seed, deferInit: true });
  await withWeights(config, (state) => streamStateDict(model, state));
  materialize(model);
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

/** Hands the weights of the run's model directory to `load`, one tensor in memory at a time, if there are any. */
export async function withWeights(
  { model, modelConfig }: RunConfig,
  load: (state: ReadonlyMap<string, LazyTensor>) => Promise<void>,
): Promise<void> {
  if (model.kind === 'directory' && model.hasWeights) {
    await withModelState(model.path, modelConfig, load);
  }
}

/** Weight decay is for matrices and tables; gains and biases go without. */
export function adamW(parameters: readonly Tensor[], config: RunConfig): AdamW {
  const { lr, beta1, beta2, eps, weightDecay } = config;
  const groups = [
    { params: parameters.filter(({ rank }) => rank >= 2), weightDecay },
    { params: parameters.filter(({ rank }) => rank < 2), weightDecay: 0 },
  ];
  return new AdamW(groups, { lr, betas: [beta1, beta2], eps });
}
