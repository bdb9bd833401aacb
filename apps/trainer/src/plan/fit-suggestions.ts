// Flags that would make a run fit, from those that change least to those that change most. Each
// suggestion is tried by a dry run before it is printed.

import { numMicroSteps } from '../data/row-order.js';
import type { RunConfig, StrategyName } from '../run-config.js';
import { numBlocks } from '../task/text-config.js';

/** A run with other flags. */
export interface Way {
  /** The changed flags, in place of those that the user gave. */
  readonly flags: string;
  readonly config: RunConfig;
}

const MORE_RANKS = [2, 4, 8];
const MIB = 2 ** 20;
/** Budgets that double, in MiB. */
const BUDGETS = Array.from({ length: 21 }, (_, power) => 1 << power);

/**
 * Other runs of the same rows, by where parameters rest. Each list goes from the run that changes
 * least to the one that takes least; where the last one does not fit, none of the list does.
 */
export function fitSuggestions(config: RunConfig): readonly (readonly Way[])[] {
  const { strategy, ranks, cpuOffload, offloadDir, gradientGroups } = config;
  const canOffload = gradientGroups === undefined; // which computes no groups
  const ways: Way[] = [{ flags: '', config }];
  if (strategy !== 'offload') {
    const least = strategy === 'fsdp' ? ranks : 1;
    ways.push(...MORE_RANKS.filter((more) => more > least).map((more) => sharded(config, more)));
    if (strategy === 'fsdp' && !cpuOffload && offloadDir === undefined) {
      ways.push({ flags: '--cpu-offload', config: { ...config, cpuOffload: true } });
    }
    ways.push(...(canOffload ? [offloaded(config)] : []));
  }
  if (offloadDir === undefined && canOffload) {
    const way = offloaded(config);
    const flags = `${way.flags} --offload-dir DIR`.trim();
    ways.push({ flags, config: { ...way.config, offloadDir: 'DIR' } });
  }
  return [
    largerBudgets(config),
    ...ways.map((way) => smallerSteps(way).filter((smaller) => smaller.flags !== '')),
  ];
}

/** The run with more of its device, where the user has said how much. */
function largerBudgets(config: RunConfig): Way[] {
  const { deviceBudget: given = Number.POSITIVE_INFINITY } = config;
  return BUDGETS.filter((budget) => budget * MIB > given).map((budget) =>
    withFlag({ flags: '', config }, `--device-budget ${budget}MiB`, { deviceBudget: budget * MIB }),
  );
}

/** The same way on fewer rows at a time, and with activations computed twice. */
function smallerSteps(way: Way): Way[] {
  const { batch, ranks, checkpointActivations, gradientGroups } = way.config;
  const gradAccum = Math.ceil(batch / ranks);
  const rows =
    numMicroSteps(way.config) === gradAccum || gradientGroups !== undefined
      ? [way]
      : [way, withFlag(way, `--grad-accum ${gradAccum}`, { gradAccum })];
  const again = checkpointActivations
    ? []
    : rows.map((row) => withFlag(row, '--checkpoint-activations', { checkpointActivations: true }));
  return [...rows, ...again];
}

function withFlag({ flags, config }: Way, flag: string, changed: Partial<RunConfig>): Way {
  return { flags: `${flags} ${flag}`.trim(), config: { ...config, ...changed } };
}

function sharded(config: RunConfig, ranks: number): Way {
  return { flags: flagsOf('fsdp', config, ranks), config: movedTo(config, 'fsdp', ranks) };
}

/** The way with slices of one block each, which take the least. */
function offloaded(config: RunConfig): Way {
  const { modelConfig, slices, deviceBudget } = config;
  const way = { flags: flagsOf('offload', config, 1), config: movedTo(config, 'offload', 1) };
  const most = numBlocks(modelConfig);
  return slices === undefined && deviceBudget === undefined
    ? withFlag(way, `--slices ${most}`, { slices: most })
    : way;
}

/** The run with another strategy, on other ranks that share the same threads. */
export function movedTo(config: RunConfig, strategy: StrategyName, ranks: number): RunConfig {
  const { device, threads } = config;
  return {
    ...config,
    strategy,
    ranks,
    device: Array.from({ length: ranks }, (_, rank) => device[rank] ?? device[0]!),
    threads: Math.max(1, Math.floor((threads * config.ranks) / ranks)),
    cpuOffload: strategy === 'fsdp' && config.cpuOffload,
  };
}

function flagsOf(strategy: StrategyName, config: RunConfig, ranks: number): string {
  const isSame = config.strategy === strategy;
  return [
    ...(isSame ? [] : [`--strategy ${strategy}`]),
    ...(config.ranks === ranks ? [] : [`--ranks ${ranks}`]),
  ].join(' ');
}
