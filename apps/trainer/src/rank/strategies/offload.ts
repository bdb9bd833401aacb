// The model at rest off the device of its one rank, in host memory or on disk. Weights never come
// to the device as a whole, neither from a file nor on their way into one.

import type { Sequential } from '@shardweave/nn';
import { materialize } from '@shardweave/nn/flat';
import { OffloadModel } from '@shardweave/offload';
import type { ShardStore } from '@shardweave/shard-store';
import { COMPUTE_DTYPES, type RunConfig } from '../../run-config.js';
import { adamW, bytesOf, loadWeights, restingBody, trainedParameters } from './model-parts.js';
import { type Rest, withRest } from './open-rest.js';
import type { Strategy, StrategyOptions } from './strategy.js';
import { withHead } from './task-model.js';

export function openOffload(options: StrategyOptions): Promise<Strategy> {
  const { config, openStore } = options;
  const { offloadDir: directory } = config;
  return withRest({ directory, config, openStore }, (rest) => openAtRest(options, rest));
}

async function openAtRest({ device, config, own }: StrategyOptions, rest: Rest): Promise<Strategy> {
  const body = own === undefined ? await restingBody(device, config) : (own.module as Sequential);
  const { store } = rest;
  const offload = new OffloadModel(body, offloadOptions(config, store));
  const model = withHead(offload, config);
  const parameters = trainedParameters(model);
  const shardBytes = bytesOf(model.parameters());
  await loadWeights(model, config);
  const optimizer = adamW(parameters, config);
  return {
    module: model,
    optimizer,
    shardBytes,
    initialize: async () => {
      await materialize(model); // the head, which stays on the device
      await offload.moveToStore();
    },
    noSync: (run) => run(),
    step: async (options) => {
      await rest.beginStep();
      await optimizer.step(options);
    },
    isSavedBeside: rest.isPinning,
    text: { model },
    dispose: async () => {
      model.dispose();
      await store.close();
    },
  };
}

function offloadOptions(config: RunConfig, store: ShardStore) {
  const { deviceBudget, slices, microBatches } = config;
  return {
    store,
    checkpointActivation: config.checkpointActivations,
    numMicrobatches: microBatches,
    computeDType: COMPUTE_DTYPES[config.precision],
    ...(deviceBudget === undefined ? {} : { deviceBudgetBytes: deviceBudget }),
    ...(slices === undefined ? {} : { numSlices: slices }),
  };
}
