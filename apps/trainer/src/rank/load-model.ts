// One rank's model with its first weights: random ones, or those of a model directory.

import { join } from 'node:path';
import { Gpt2, streamStateDict } from '@shardweave/nn';
import { loadStateDict as loadOffloaded } from '@shardweave/offload';
import type { ShardStore } from '@shardweave/shard-store';
import { openDiskStore } from '@shardweave/shard-store/node';
import type { Device } from '@shardweave/tensor-core';
import { UsageError } from '../errors.js';
import { type ModelState, withModelState } from '../model/model-directory.js';
import type { RunConfig } from '../run-config.js';
import {
  offloadedModel,
  type ShardGroups,
  type TrainingModel,
  trainingModel,
} from './training-model.js';

/** Weights pass through the host one tensor at a time; with offload they never come to the device. */
export async function loadModel(
  device: Device,
  config: RunConfig,
  groups: ShardGroups,
): Promise<TrainingModel> {
  if (config.strategy === 'offload') {
    return loadOffloadedModel(device, config);
  }
  const model = new Gpt2(device, config.gpt2, { seed: config.seed });
  await withWeights(config, (state) => streamStateDict(model, state));
  const isPlain = config.strategy === 'single' && config.precision === 'fp32';
  const { offloadDir } = config;
  if (config.strategy !== 'fsdp' || offloadDir === undefined) {
    return trainingModel(model, config, isPlain ? undefined : groups);
  }
  const directory = join(offloadDir, `rank${groups.gather.rank}`);
  return trainingModel(model, config, groups, await openRest(directory, config));
}

async function loadOffloadedModel(device: Device, config: RunConfig): Promise<TrainingModel> {
  const model = new Gpt2(device, config.gpt2, { seed: config.seed, deferInit: true });
  const { offloadDir: directory } = config;
  const store = directory === undefined ? undefined : await openRest(directory, config);
  const training = offloadedModel(model, config, store);
  await withWeights(config, (state) => loadOffloaded(training.offload!, state));
  return training;
}

/**
 * The store of a directory, empty: a run starts anew, and what is trained is deleted by order alone.
 *
 * @throws {UsageError} where an earlier run's state is there, and --fresh is not given
 */
async function openRest(directory: string, { isFresh }: RunConfig): Promise<ShardStore> {
  const store = await openDiskStore({ directory });
  const keys = store.keys();
  if (keys.length === 0) {
    return store;
  }
  if (!isFresh) {
    await store.close();
    throw new UsageError(
      `--offload-dir: ${directory} holds the state of an earlier run, which starting anew would delete. Give another directory, or --fresh to delete it.`,
    );
  }
  await Promise.all(keys.map((key) => store.delete(key)));
  return store;
}

/** Hands the directory's weights to `load`, if there are any. */
async function withWeights(
  { model }: RunConfig,
  load: (state: ModelState) => Promise<void>,
): Promise<void> {
  if (model.kind !== 'directory' || !model.hasWeights) {
    return;
  }
  await withModelState(model.path, load);
}
