// Groups of rows are dealt out once for a whole tree.

import { FsdpConfigError } from '../errors.js';
import type { TreeInstance } from './tree-instance.js';

/**
 * @throws {FsdpConfigError} where an instance has other gradientGroups than the root, or has some
 * over other ranks
 */
export function requireOneDeal(root: TreeInstance): void {
  const { gradientGroups: groups } = root.options;
  for (const { options, processGroup, name } of root.instances()) {
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
