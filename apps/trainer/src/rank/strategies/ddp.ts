// The whole model on each rank, in 16 bits beside f32 masters; gradients are added up in buckets
// during backward.

import { DistributedDataParallel } from '@shardweave/ddp-buckets';
import { packParameters } from '@shardweave/nn';
import { materialize } from '@shardweave/nn/flat';
import { COMPUTE_DTYPES } from '../../run-config.js';
import { adamW, bytesOf, trainedParameters, wholeModel } from './model-parts.js';
import type { Strategy, StrategyOptions } from './strategy.js';

export async function openDdp(options: StrategyOptions): Promise<Strategy> {
  const { config, groups } = options;
  const { gradientGroups } = config;
  const model = await wholeModel(options);
  const shardBytes = bytesOf(model.parameters());
  const computeDType = COMPUTE_DTYPES[config.precision];
  const packed = computeDType === 'f32' ? undefined : packParameters(model, { computeDType });
  await materialize(model);
  const parameters = trainedParameters(model);
  const ddp = new DistributedDataParallel(model, {
    processGroup: groups.reduce,
    gradientAverage: false, // losses are divided by all ranks' targets before backward
    allreduceAlwaysFp32: config.fp32Reduce || gradientGroups !== undefined,
    gradientGroups,
  });
  const optimizer = adamW(parameters, config);
  return {
    module: ddp,
    optimizer,
    shardBytes,
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
    dispose: async () => {
      ddp.dispose();
      packed?.dispose();
    },
  };
}
