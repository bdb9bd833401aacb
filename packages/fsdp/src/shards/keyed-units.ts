// Under which name each rank saves and finds its part of each parameter.

import type { FullyShardedDataParallel } from '../fully-sharded-data-parallel.js';
import type { ShardedUnit } from '../sharded-unit.js';

export interface KeyedUnit {
  readonly unit: ShardedUnit;
  /** One a parameter, in the unit's order. */
  readonly keys: readonly string[];
}

/**
 * All units, outer first. A parameter has its own name; where ranks hold different ones (experts: a
 * group of one rank in a tree of more) also the rank.
 */
export function keyedUnits(fsdp: FullyShardedDataParallel): KeyedUnit[] {
  const names = new Map(fsdp.namedParameters().map(([name, tensor]) => [tensor, name]));
  const { rank, worldSize } = fsdp.processGroup;
  return fsdp.instances().flatMap(({ units }) =>
    units.map((unit) => {
      const suffix = unit.group.worldSize === 1 && worldSize > 1 ? `@${rank}` : '';
      const keys = unit.parameters.map(({ tensor }) => `${names.get(tensor)!}${suffix}`);
      return { unit, keys };
    }),
  );
}

/** Whether a name is that of one rank's own parameter. */
export function isOneRanks(key: string): boolean {
  return /@\d+$/.test(key);
}
