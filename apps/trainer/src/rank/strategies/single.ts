// One rank that has everything on its device, in one flat parameter.

import { Gpt2, packParameters, stateDict, streamedGradNorm, streamStateDict } from '@shardweave/nn';
import { adamW, checkpointBlocks, withWeights } from './gpt2-parts.js';
import type { Strategy, StrategyOptions } from './strategy.js';

export async function openSingle({ device, config }: StrategyOptions): Promise<Strategy> {
  const model = new Gpt2(device, config.gpt2, { seed: config.seed });
  await withWeights(config, (state) => streamStateDict(model, state));
  checkpointBlocks(model, config);
  const parameters = model.parameters();
  const packed = packParameters(model);
  const optimizer = adamW(parameters, config);
  return {
    module: model,
    optimizer,
    shardBytes: packed.flat.size * 4,
    initialize: async () => {},
    noSync: (run) => run(),
    gradNorm: () => streamedGradNorm(parameters),
    step: (options) => optimizer.step(options),
    stateDict: () => stateDict(model),
    textModel: async () => model,
    dispose: async () => {
      model.dispose();
      packed.dispose();
    },
  };
}
