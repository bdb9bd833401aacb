// What tells ranks' parameters of one name apart in saves.
//
// Note [keys of experts]
// Ranks of a tree may hold different parameters under one name: experts, whose group has only some
// of the tree's ranks. The keys of experts end with the number of their group, and groups are
// numbered by their first ranks. Four ranks in pairs have 'up.weight@0' and 'up.weight@1'. So a
// save finds its way back to as many experts on any other number of ranks. The replicas of an
// instance hold the same values, and count as one group here.

import { exchangeTexts, type ProcessGroup } from '@shardweave/collectives';
import { callIdentity, exchangeCall } from '../ranks/call-identity.js';
import type { Instance } from '../tree/instance.js';
import { requireNoOwnerBeside } from '../tree/own-parameters.js';
import type { ShardedUnit } from '../unit/sharded-unit.js';

export interface KeyedUnit {
  readonly unit: ShardedUnit;
  /** What follows the names of its parameters in their keys. */
  readonly suffix: string;
  /** Whether this rank writes its part; false where another rank that has the same does. */
  readonly isWriting: boolean;
}

/**
 * All units with their keys, outer instances first. Collective where instances have other groups
 * than `root`.
 */
export async function keyedUnits(
  root: Instance,
  options: { readonly operation: string },
): Promise<KeyedUnit[]> {
  const { operation } = options;
  requireNoOwnerBeside(root, operation);
  const numbers = await numberGroups(root, operation);
  return root.instances().flatMap((instance) => {
    const number = numbers.get(instance.processGroup);
    const suffix = number === undefined ? '' : `@${number}`;
    const { isFirstReplica } = instance.options.groups;
    return instance.units.map((unit) => {
      const isWriting = isFirstReplica && (!unit.isWhole || unit.group.rank === 0);
      return { unit, suffix, isWriting };
    });
  });
}

/**
 * The number of this rank's group for each instance whose ranks hold different parameters; empty
 * where all ranks share everything.
 */
async function numberGroups(root: Instance, operation: string): Promise<Map<ProcessGroup, number>> {
  const { processGroup } = root;
  const inner = new Map(
    root
      .instances()
      .filter((instance) => instance.processGroup !== processGroup)
      .map((instance) => [instance.processGroup, instance]),
  );
  const numbers = new Map<ProcessGroup, number>();
  if (inner.size === 0) {
    return numbers;
  }
  // A group is identified by the rank that its first member has in the tree's group.
  const firsts: number[] = [];
  for (const { processGroup: group, replicateGroup } of inner.values()) {
    const first = new Uint8Array(Uint32Array.of(processGroup.rank).buffer);
    for (const each of [group, replicateGroup]) {
      if (each === undefined || each.worldSize === 1) {
        continue;
      }
      await each.broadcast(first, { root: 0, tag: operation, identity: callIdentity(operation) });
    }
    firsts.push(new Uint32Array(first.buffer)[0]!);
  }
  const texts = await exchangeTexts(processGroup, JSON.stringify(firsts), exchangeCall(operation));
  const all = texts.map((text) => JSON.parse(text) as number[]);
  [...inner.keys()].forEach((group, index) => {
    const distinct = [...new Set(all.map((list) => list[index]!))].sort((a, b) => a - b);
    if (distinct.length > 1) {
      numbers.set(group, distinct.indexOf(firsts[index]!));
    }
  });
  return numbers;
}
