// Moves parameters into shards, unit by unit, so that only one unit is whole at a time. The values
// are rank 0's unless an instance says otherwise.

import { byteSize } from '@shardweave/dtypes';
import type { Module } from '@shardweave/nn';
import type { ShardedUnit } from './sharded-unit.js';
import type { LinkGroups } from './unit-links.js';

/** Shards one unit. Collective where values are synchronised. */
export async function shardUnit(
  unit: ShardedUnit,
  groups: LinkGroups,
  options: { readonly syncModuleStates: boolean },
): Promise<void> {
  if (unit.isSharded) return;
  if (!options.syncModuleStates || numRanks(groups) === 1) return unit.shard();
  const whole = isSource(groups) ? await unit.readOriginals() : unit.emptyMaster();
  await broadcastFromFirst(whole, groups, unit.name);
  unit.shard(whole);
}

/** Gives every rank rank 0's buffers. Collective. */
export async function syncBuffers(module: Module, groups: LinkGroups): Promise<void> {
  if (numRanks(groups) === 1) return;
  for (const [name, buffer] of module.namedBuffers()) {
    const bytes = await buffer.toBytes();
    await broadcastFromFirst(bytes, groups, name);
    if (!isSource(groups)) buffer.storage.write(bytes, buffer.offset * byteSize(buffer.dtype));
  }
}

function numRanks({ processGroup, replicateGroup }: LinkGroups): number {
  return processGroup.worldSize * (replicateGroup?.worldSize ?? 1);
}

/** Whether this rank's values are everybody's. */
function isSource({ processGroup, replicateGroup }: LinkGroups): boolean {
  return processGroup.rank === 0 && (replicateGroup === undefined || replicateGroup.rank === 0);
}

/** From the first replica's rank 0 to the first ranks of all replicas, and on to all. */
async function broadcastFromFirst(
  bytes: Uint8Array,
  { processGroup, replicateGroup }: LinkGroups,
  tag: string,
): Promise<void> {
  if (replicateGroup !== undefined && processGroup.rank === 0) {
    await replicateGroup.broadcast(bytes, { root: 0, tag });
  }
  if (processGroup.worldSize > 1) await processGroup.broadcast(bytes, { root: 0, tag });
}
