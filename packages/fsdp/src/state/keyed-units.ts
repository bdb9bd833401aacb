// Under which name each rank saves and finds its part of each parameter.
//
// Note [keys of experts]
// Ranks of a tree may hold different parameters under one name: experts, whose group has some of
// the tree's ranks. Their keys have the number of the group behind the name, counted by first
// ranks: over four ranks in pairs 'up.weight@0' and 'up.weight@1'. So a save finds its way to as
// many experts of any other number of ranks. Replicas of an instance hold the same, and are one
// group here.

import { exchangeTexts, type ProcessGroup } from '@shardweave/collectives';
import { callIdentity, exchangeCall } from '../tree/call-identity.js';
import type { Instance } from '../tree/instance.js';
import { requireNoOwnerBeside } from '../unit/own-parameters.js';
import type { ShardedUnit } from '../unit/sharded-unit.js';

export interface KeyedUnit {
  readonly unit: ShardedUnit;
  /** One a parameter, in the unit's order. */
  readonly keys: readonly string[];
  /** Whether this rank writes its part: another replica does not. */
  readonly isWriting: boolean;
}

/** All units, outer first. Collective where instances have other groups than `root`. */
export async function keyedUnits(
  root: Instance,
  options: { readonly operation: string },
): Promise<KeyedUnit[]> {
  const { operation } = options;
  requireNoOwnerBeside(root, operation);
  const names = new Map(root.wrapper.namedParameters().map(([name, tensor]) => [tensor, name]));
  const numbers = await numberGroups(root, operation);
  return root.instances().flatMap((instance) => {
    const number = numbers.get(instance.processGroup);
    const suffix = number === undefined ? '' : `@${number}`;
    return instance.units.map((unit) => ({
      unit,
      keys: unit.parameters.map(({ tensor }) => `${names.get(tensor)!}${suffix}`),
      isWriting: instance.isFirstReplica,
    }));
  });
}

/** Whether a name is that of an expert. */
export function isOneGroups(key: string): boolean {
  return /@\d+$/.test(key);
}

/**
 * The number of this rank's group among those that hold different parameters; none where all share.
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
  // A group is known by its first rank in the tree's group.
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
