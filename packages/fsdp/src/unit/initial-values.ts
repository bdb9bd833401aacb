// Moves parameters into shards, unit by unit and part by part: no rank's host holds more than a few
// parts of one shard, and no device more than its shards. The values are rank 0's unless an
// instance says otherwise.

import { byteSize } from '@shardweave/dtypes';
import type { Module } from '@shardweave/nn';
import { type FlatPlace, partsOf } from '@shardweave/nn/flat';
import { callIdentity } from '../ranks/call-identity.js';
import type { RankGroups } from '../ranks/rank-groups.js';
import type { ShardedUnit } from './sharded-unit.js';

/** The channel of messages with initial values; a program's own messages use other channels. */
const CHANNEL = 0xf5d90001;

const NOTHING = new Uint8Array(0);

/** Shards one unit. Collective where values are synchronized. */
export function shardUnit(
  unit: ShardedUnit,
  groups: RankGroups,
  options: { readonly syncModuleStates: boolean },
): Promise<void> {
  const isSynced = options.syncModuleStates && groups.numRanks > 1;
  return unit.values.takeOver(isSynced ? () => fillFromFirst(unit, groups) : undefined);
}

/**
 * Rank 0 of the first replica makes or reads each rank's part and sends it there when asked. Each
 * rank of that replica passes its own part on to the same rank of the other replicas.
 */
async function fillFromFirst(unit: ShardedUnit, groups: RankGroups): Promise<void> {
  const { processGroup, replicateGroup } = groups;
  const { shardLength, worldSize } = unit.layout;
  for (const { start, length } of partsOf(unit.flat)) {
    if (unit.isWhole) {
      await fillAllFromFirst(unit, { start, length });
      continue;
    }
    let part: Uint8Array;
    if (groups.isFirstRank) {
      for (let to = 1; to < worldSize; to++) {
        const theirs = await unit.values.readLeaves({ start: to * shardLength + start, length });
        await processGroup.recv(NOTHING, { from: to, channel: CHANNEL });
        await processGroup.send(theirs, { to, channel: CHANNEL });
      }
      if (replicateGroup === undefined) {
        await unit.values.fillPart({ start, length });
        continue;
      }
      part = await unit.values.readLeaves({ start, length });
    } else {
      part = new Uint8Array(byteOffset(unit, length));
      if (groups.isFirstReplica) {
        // The part is asked for, because parts that come unasked would pile up in this rank's
        // memory where its home is slow to write.
        await processGroup.send(NOTHING, { to: 0, channel: CHANNEL });
        await processGroup.recv(part, { from: 0, channel: CHANNEL });
      }
    }
    const identity = callIdentity('initialize', unit.name);
    await replicateGroup?.broadcast(part, { root: 0, tag: unit.name, identity });
    await unit.values.write(part, byteOffset(unit, start));
  }
}

/** Rank 0 sends a part of what all ranks have whole. */
async function fillAllFromFirst(unit: ShardedUnit, run: FlatPlace): Promise<void> {
  const { group, name } = unit;
  const part =
    group.rank === 0
      ? await unit.values.readLeaves(run)
      : new Uint8Array(byteOffset(unit, run.length));
  const identity = callIdentity('initialize', name);
  await group.broadcast(part, { root: 0, tag: name, identity });
  await unit.values.write(part, byteOffset(unit, run.start));
}

function byteOffset(unit: ShardedUnit, element: number): number {
  return element * byteSize(unit.flat.dtype);
}

/** Gives every rank rank 0's buffers. Collective. */
export async function syncBuffers(module: Module, groups: RankGroups): Promise<void> {
  if (groups.numRanks === 1) {
    return;
  }
  for (const [name, buffer] of module.namedBuffers()) {
    const bytes = await buffer.toBytes();
    await broadcastFromFirst(bytes, groups, name);
    if (!groups.isFirstRank) {
      buffer.storage.write(bytes, buffer.offset * byteSize(buffer.dtype));
    }
  }
}

/**
 * Broadcasts from rank 0 of the first replica to the first ranks of all replicas, and from these to
 * their replicas.
 */
async function broadcastFromFirst(
  bytes: Uint8Array,
  { processGroup, replicateGroup }: RankGroups,
  tag: string,
): Promise<void> {
  const options = { root: 0, tag, identity: callIdentity('initialize', tag) };
  if (replicateGroup !== undefined && processGroup.rank === 0) {
    await replicateGroup.broadcast(bytes, options);
  }
  if (processGroup.worldSize > 1) {
    await processGroup.broadcast(bytes, options);
  }
}
