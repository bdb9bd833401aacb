// Opens the strategy of a run; no other place asks which one that is.

import type { ProcessGroup } from '@shardweave/collectives';
import type { RunConfig } from '../../run-config.js';
import { openDdp } from './ddp.js';
import { openFsdp } from './fsdp.js';
import { openOffload } from './offload.js';
import { openSingle } from './single.js';
import type { RankGroups, Strategy, StrategyOptions } from './strategy.js';

/** The groups that a run's strategy uses, made from a group of all its ranks. Collective. */
export async function openRankGroups(
  gather: ProcessGroup,
  { strategy, precision }: Pick<RunConfig, 'strategy' | 'precision'>,
): Promise<RankGroups> {
  const reduce = gather.worldSize === 1 ? gather : await gather.split(0);
  const isReplicaSharded = strategy === 'ddp' && precision !== 'fp32';
  const alone = isReplicaSharded ? await gather.split(gather.rank) : undefined;
  return { gather, reduce, alone };
}

/**
 * Opens the model of a run with its first weights: random ones, or those of a model directory.
 * Collective.
 * @throws {UsageError} for weights that do not fit, and for an --offload-dir that is in use
 */
export async function openStrategy(options: StrategyOptions): Promise<Strategy> {
  const { strategy, precision } = options.config;
  switch (strategy) {
    case 'single':
      // A whole model in 16 bits is a model sharded over one rank, which gives mixed precision;
      // with ddp each replica is.
      return precision === 'fp32' ? openSingle(options) : openFsdp(options);
    case 'fsdp':
      return openFsdp(options);
    case 'ddp':
      return precision === 'fp32' ? openDdp(options) : openFsdp(options);
    case 'offload':
      return openOffload(options);
  }
}
