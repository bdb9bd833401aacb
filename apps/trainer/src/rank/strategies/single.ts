// One rank that has everything on its device, in flat parameters: f32 masters, and in 16 bits the
// copies that it computes in.

import { packParameters } from '@shardweave/nn';
import { materialize } from '@shardweave/nn/flat';
import { COMPUTE_DTYPES } from '../../run-config.js';
import { openDdp } from './ddp.js';
import { adamW, bytesOf, trainedParameters, wholeModel } from './model-parts.js';
import type { Strategy, StrategyOptions } from './strategy.js';

export async function openSingle(options: StrategyOptions): Promise<Strategy> {
  if (options.config.gradientGroups !== undefined) {
    return openDdp(options); // whose buckets add groups up, on a single rank too
  }
  const model = await wholeModel(options);
  const parameters = trainedParameters(model);
  const shardBytes = bytesOf(model.parameters());
  const computeDType = COMPUTE_DTYPES[options.config.precision];
  const packed = packParameters(model, { computeDType }); // drawn where they rest, without a copy
  await materialize(model);
  const optimizer = adamW(parameters, options.config);
  return {
    module: model,
    optimizer,
    shardBytes,
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
