// The whole model on each rank in f32; gradients are added up in buckets during backward.

import { DistributedDataParallel } from '@shardweave/ddp-buckets';
import { materialize } from '@shardweave/nn/flat';
import { adamW, bytesOf, trainedParameters, wholeModel } from './model-parts.js';
import type { Strategy, StrategyOptions } from './strategy.js';

export async function openDdp(options: StrategyOptions): Promise<Strategy> {
  const { config, groups } = options;
  const model = await wholeModel(options);
  materialize(model);
  const parameters = trainedParameters(model);
  const ddp = new DistributedDataParallel(model, {
    processGroup: groups.reduce,
    gradientAverage: false, // losses are divided by all ranks' targets before backward
  });
  const optimizer = adamW(parameters, config);
  return {
    module: ddp,
    optimizer,
    shardBytes: bytesOf(model.parameters()),
    initialize: () => ddp.initialize(),
    noSync: (run) => ddp.noSync(run),
    step: async (options) => {
      await optimizer.step(options);
      if (ddp.numericClasses.length > 1) {
        await ddp.syncParameters({ onlyTrained: true }); // each device has rounded its own
      }
    },
    isSavedBeside: true,
    text: { model },
    dispose: async () => ddp.dispose(),
  };
}
