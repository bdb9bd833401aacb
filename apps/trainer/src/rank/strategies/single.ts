// One rank that has everything on its device, in one flat parameter.

import { packParameters } from '@shardweave/nn';
import { materialize } from '@shardweave/nn/flat';
import { adamW, bytesOf, trainedParameters, wholeModel } from './model-parts.js';
import type { Strategy, StrategyOptions } from './strategy.js';

export async function openSingle(options: StrategyOptions): Promise<Strategy> {
  const model = await wholeModel(options);
  const parameters = trainedParameters(model);
  const packed = packParameters(model); // drawn where they rest, without a copy
  materialize(model);
  const optimizer = adamW(parameters, options.config);
  return {
    module: model,
    optimizer,
    shardBytes: bytesOf(model.parameters()),
    initialize: async () => {},
    noSync: (run) => run(),
    step: (options) => optimizer.step(options),
    isSavedBeside: true,
    text: { model },
    dispose: async () => {
      model.dispose();
      packed.dispose();
    },
  };
}
