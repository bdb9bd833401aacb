// Each block is a unit that is sharded over the ranks, and the rest of the model is a unit at the
// root. No device ever holds more of it than its shards and what is gathered.

import { join } from 'node:path';
import { FullyShardedDataParallel, setGradientDivideFactors } from '@shardweave/fsdp';
import type { Module } from '@shardweave/nn';
import type { ShardStore } from '@shardweave/shard-store';
import type { Tensor } from '@shardweave/tensor-core';
import type { Block } from '../../own-model/open-own-model.js';
import { COMPUTE_DTYPES, type RunConfig } from '../../run-config.js';
import type { TaskModule } from '../objectives/objective.js';
import {
  adamW,
  checkpointBlocks,
  loadWeights,
  modelBlocks,
  restingModel,
  trainedParameters,
} from './model-parts.js';
import { type Rest, withRest } from './open-rest.js';
import type { RankGroups, Strategy, StrategyOptions } from './strategy.js';
import { sumOverRanks } from './sum-over-ranks.js';

/**
 * A token's hidden row travels and lies on the device in its own dtype and, as a gradient, twice in
 * f32: as much as five rows of a table in 16 bits.
 */
const TABLE_ROWS_PER_TOKEN = 5;

export function openFsdp(options: StrategyOptions): Promise<Strategy> {
  const { config, groups, openStore } = options;
  const { offloadDir, cpuOffload } = config;
  const directory =
    offloadDir === undefined ? undefined : join(offloadDir, `rank${groups.gather.rank}`);
  return directory === undefined && !cpuOffload
    ? openShards(options, undefined)
    : withRest({ directory, config, openStore }, (rest) => openShards(options, rest));
}

async function openShards(options: StrategyOptions, rest: Rest | undefined): Promise<Strategy> {
  const { config, groups } = options;
  const model = await restingModel(options);
  checkpointBlocks(modelBlocks(model, options), config);
  const parameters = trainedParameters(model);
  const blocks = modelBlocks(model, options);
  const vocabParallel = rest === undefined && isVocabParallel(config);
  const fsdp = shardBlocks(model, blocks, { config, groups, store: rest?.store, vocabParallel });
  const optimizer = adamW(parameters, config);
  await loadWeights(fsdp, config);
  const isSavedBeside =
    rest === undefined ? !config.cpuOffload : await isPinningOnAll(rest, groups);
  return {
    module: fsdp,
    optimizer,
    shardBytes: fsdp
      .instances()
      .flatMap(({ units }) => units)
      .reduce((sum, { flat }) => sum + flat.storage.byteLength, 0),
    initialize: () => fsdp.initialize(),
    noSync: (run) => fsdp.noSync(run),
    step: async (options) => {
      await rest?.beginStep();
      await optimizer.step(options);
    },
    isSavedBeside,
    text: { model: fsdp, group: groups.gather },
    dispose: async () => {
      fsdp.dispose();
      await rest?.store.close();
    },
  };
}

/**
 * Whether ranks compute with their parts of a frozen token table, which moves and holds less where
 * a call has few tokens. Bits that are equal on any number of ranks take the whole table.
 */
function isVocabParallel(config: RunConfig): boolean {
  const { head, gradientGroups, batch, gradAccum, seq, modelConfig } = config;
  const tokens = (batch / gradAccum) * seq; // of all ranks in a call
  const isFew = TABLE_ROWS_PER_TOKEN * tokens <= modelConfig.vocab_size;
  return head.kind !== 'module' && gradientGroups === undefined && isFew;
}

/** Whether every rank's directory is on a file system with hard links. */
async function isPinningOnAll({ isPinning }: Rest, { gather }: RankGroups): Promise<boolean> {
  return (await sumOverRanks(Number(!isPinning), gather, 'saves')) === 0;
}

interface Sharding {
  readonly config: RunConfig;
  readonly groups: RankGroups;
  /** The store for what it keeps off the device. */
  readonly store: ShardStore | undefined;
  /** See FsdpOptions. Default true. */
  readonly shardTrained?: boolean;
  /** See FsdpOptions. Default false. */
  readonly vocabParallel?: boolean;
}

/** Shards a model block by block; gradients are summed over ranks. */
export function shardBlocks(
  model: TaskModule,
  blocks: readonly Block[],
  sharding: Sharding,
): FullyShardedDataParallel {
  for (const [i, { owner, name, module }] of blocks.entries()) {
    const options = fsdpOptions(sharding, `h.${i}`);
    const unit = new FullyShardedDataParallel(module as Module<[x: Tensor], Tensor>, options);
    owner.replaceChild(name, unit);
  }
  const fsdp = new FullyShardedDataParallel(model, fsdpOptions(sharding, 'root'));
  // Losses are divided by all ranks' targets before backward.
  setGradientDivideFactors(fsdp, { predivide: 1, postdivide: 1 });
  return fsdp;
}

function fsdpOptions(sharding: Sharding, name: string) {
  const { config, groups, store, shardTrained = true, vocabParallel = false } = sharding;
  const isMixed = config.precision !== 'fp32';
  const { gradientGroups } = config;
  return {
    name,
    processGroup: groups.gather,
    processGroupReduceScatter: groups.reduce,
    ...{ shardTrained, vocabParallel },
    syncModuleStates: false, // seeds are equal, so each rank draws its own part
    reshardAfterForward: config.reshard,
    ...(store === undefined ? {} : { offloadConfig: { store } }),
    mixedPrecision: isMixed,
    computeDType: COMPUTE_DTYPES[config.precision],
    fp32ReduceScatter: isMixed && (config.fp32Reduce || gradientGroups !== undefined),
    ...(gradientGroups === undefined ? {} : { gradientGroups }),
    // Each block's reduction starts when its gradient is final, and overlaps with the blocks below.
    bucketCapMb: 0,
    ...(config.gatherCap === undefined ? {} : { gatherCapBytes: config.gatherCap }),
  };
}
