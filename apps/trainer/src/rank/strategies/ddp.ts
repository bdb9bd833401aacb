// The whole model on each rank; gradients meet in buckets during backward.

import { pieceDirectory } from '@shardweave/checkpoint/node';
import { DistributedDataParallel, gradNorm } from '@shardweave/ddp-buckets';
import { loadCheckpoint, saveCheckpoint, stateDict } from '@shardweave/nn';
import { adamW, bytesOf, trainedParameters, wholeModel } from './model-parts.js';
import type { Strategy, StrategyOptions } from './strategy.js';

export async function openDdp(options: StrategyOptions): Promise<Strategy> {
  const { config, groups } = options;
  const model = await wholeModel(options);
  const parameters = trainedParameters(model);
  const onlyTrained = config.lora !== undefined;
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
    gradNorm: () => gradNorm(ddp),
    step: (options) => optimizer.step(options),
    load: (directory) => loadCheckpoint(ddp, pieceDirectory(directory), { optimizer, onlyTrained }),
    save: async (directory, extra) => {
      if (groups.gather.rank === 0) {
        await saveCheckpoint(ddp, pieceDirectory(directory), { optimizer, extra, onlyTrained });
      }
      await groups.gather.barrier(); // no rank ends before the save is whole
    },
    stateDict: () => stateDict(ddp),
    textModel: async () => model,
    dispose: async () => ddp.dispose(),
  };
}
