// Opens the strategy of a run; no other place asks which one that is.

import type { ProcessGroup } from '@shardweave/collectives';
import { openOwnModel } from '../../own-model/open-own-model.js';
import { openObjective } from '../objectives/open-objective.js';
import { openDdp } from './ddp.js';
import { openFsdp } from './fsdp.js';
import { openOffload } from './offload.js';
import { openSingle } from './single.js';
import type { RankGroups, Strategy, StrategyOptions, TaskStrategy } from './strategy.js';

/** The groups that a run's strategy uses, made from a group of all its ranks. Collective. */
export async function openRankGroups(gather: ProcessGroup): Promise<RankGroups> {
  const reduce = gather.worldSize === 1 ? gather : await gather.split(0);
  return { gather, reduce };
}

/**
 * Opens the model of a run with its first weights: random ones, or those of a model directory.
 * Collective.
 * @throws {UsageError} for weights that do not fit, and for an --offload-dir that is in use
 */
export async function openStrategy(options: StrategyOptions): Promise<TaskStrategy> {
  const { device, config, groups } = options;
  const own = await openOwnModel(device, config);
  const strategy = await openByName({ ...options, own });
  const objective = openObjective({ device, module: strategy.module, config, groups, own });
  return { ...strategy, objective, onlyTrained: own === undefined };
}

function openByName(options: StrategyOptions): Promise<Strategy> {
  switch (options.config.strategy) {
    case 'single':
      return openSingle(options);
    case 'fsdp':
      return openFsdp(options);
    case 'ddp':
      return openDdp(options);
    case 'offload':
      return openOffload(options);
  }
}
