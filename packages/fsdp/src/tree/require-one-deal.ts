// What all instances of a tree have alike: groups of rows, which are dealt out once, and whether
// what is trained is sharded.

import { FsdpConfigError } from '../errors.js';
import type { TreeInstance } from './tree-instance.js';

/**
 * @throws {FsdpConfigError} where an instance has other gradientGroups than the root, or has some
 * over other ranks, or another shardTrained
 */
export function requireOneDeal(root: TreeInstance): void {
  const { gradientGroups: groups, shardTrained } = root.options;
  for (const { options, processGroup, name } of root.instances()) {
    if (options.shardTrained !== shardTrained && processGroup.worldSize > 1) {
      throw new FsdpConfigError(
        `initialize: expected shardTrained ${shardTrained} of instance '${name}', as its root has, got ${options.shardTrained}. Give all instances of a tree the same.`,
      );
    }
    if (options.gradientGroups !== groups) {
      throw new FsdpConfigError(
        `initialize: expected gradientGroups ${groups ?? 'of none'} of instance '${name}', as its root has, got ${options.gradientGroups ?? 'none'}. Give all instances of a tree the same.`,
      );
    }
    if (groups !== undefined && processGroup !== root.processGroup) {
      throw new FsdpConfigError(
        `initialize: expected no gradientGroups where instances have process groups of their own, got ${groups} and '${name}'. Groups are dealt out to the ranks of one process group.`,
      );
    }
  }
}
