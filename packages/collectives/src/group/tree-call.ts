// What a caller says of the tree by which sums are made, and what follows from it for a call.

import { type TreeNode, treeNodes, treeSums } from '@shardweave/dtypes/tree';
import type { TreeCall } from '../algorithms/tree-sums.js';
import { shown } from './value-checks.js';

/**
 * The leaves of one fixed binary tree whose sums the ranks of a call hold. It is the same on all of
 * them, and they compare it. `treeNodes` of @shardweave/dtypes/tree tells which sums a rank gives:
 * with leaves 3 to 5 of 8 these are leaf 3, and the sum of 4 and 5.
 */
export interface TreeOptions {
  /** The number of leaves of the whole tree. */
  readonly leaves: number;
  /** The first leaf of this call. Default 0. */
  readonly first?: number;
  /** The number of leaves of each rank, in group order: those of a rank follow those before it. */
  readonly counts: readonly number[];
}

/** What is wrong with a tree; undefined where nothing is. */
export function complaintOfTree(tree: TreeOptions, worldSize: number): string | undefined {
  const isCount = (value: unknown) => Number.isSafeInteger(value) && (value as number) >= 0;
  const { leaves, first = 0, counts } = (tree ?? {}) as Partial<TreeOptions>;
  if (!isCount(leaves) || leaves === 0 || !isCount(first)) {
    return `expected a tree of at least one leaf and its first one here, got ${shown(leaves)} and ${shown(first)}.`;
  }
  if (!Array.isArray(counts) || counts.length !== worldSize || !counts.every(isCount)) {
    const got = Array.isArray(counts) ? `[${counts.join(', ')}]` : shown(counts);
    return `expected a tree with counts of leaves for ${worldSize} ranks, got ${got}.`;
  }
  const end = counts.reduce((sum: number, count: number) => sum + count, first);
  return end > first && end <= leaves!
    ? undefined
    : `expected some of the ${leaves} leaves of the tree from ${first} on, got ${end - first} in counts [${counts.join(', ')}].`;
}

/** What a tree without complaints means for a call. */
export function treeCall({ leaves, first = 0, counts }: TreeOptions): TreeCall {
  const nodes: TreeNode[][] = [];
  let at = first;
  for (const count of counts) {
    nodes.push(treeNodes(leaves, at, count));
    at += count;
  }
  return { nodes, sums: treeSums(leaves, nodes.flat()), numbers: [leaves, first, ...counts] };
}
