// One fixed binary tree over a number of leaves, by which sums are made in an order that does not
// depend on who holds which leaves. First neighbors are added, then neighbors of those, and a node
// without a right neighbor goes up unchanged: 7 leaves are ((01)(23))((45)6).

/** The node of the tree over the leaves from `first` to before `end`. */
export interface TreeNode {
  readonly first: number;
  readonly end: number;
}

/** A sum of neighboring parts, each of which is that of a node. */
export interface TreeSumPlan {
  /** The node that the sum is that of. */
  readonly node: TreeNode;
  /** The number of parts in it; they follow those of the sum before. */
  readonly numParts: number;
  /** The order of adding; see ReduceOptions. */
  readonly merges: readonly number[];
}

/** Whether two nodes, one after the other, are the two halves of a node. */
export function isPair(left: TreeNode, right: TreeNode, leaves: number): boolean {
  const size = left.end - left.first;
  const isWhole = (size & (size - 1)) === 0 && left.first % (2 * size) === 0;
  return (
    isWhole && left.end === right.first && right.end === Math.min(left.first + 2 * size, leaves)
  );
}

/**
 * The largest nodes of which `count` leaves from `first` on consist, in order, at most two of a
 * size: leaves 3 to 7 of 8 are 3 and 4567.
 */
export function treeNodes(leaves: number, first: number, count: number): TreeNode[] {
  const all = Array.from({ length: count }, (_, i) => ({ first: first + i, end: first + i + 1 }));
  return treeSums(leaves, all).map(({ node }) => node);
}

/** The sums that neighboring nodes make: those of the largest nodes of which they consist. */
export function treeSums(leaves: number, parts: readonly TreeNode[]): TreeSumPlan[] {
  const sums: TreeSumPlan[] = [];
  for (const part of parts) {
    let right: TreeSumPlan = { node: part, numParts: 1, merges: [0] };
    for (
      let left = sums.at(-1);
      left && isPair(left.node, right.node, leaves);
      left = sums.at(-1)
    ) {
      sums.pop();
      const last = right.merges.at(-1)! + 1;
      right = {
        node: { first: left.node.first, end: right.node.end },
        numParts: left.numParts + right.numParts,
        merges: [...left.merges, ...right.merges.slice(0, -1), last],
      };
    }
    sums.push(right);
  }
  return sums;
}

/** Deals leaves out to ranks, each a run of neighbors: 8 over 3 ranks is 3, 3, 2. */
export function dealLeaves(leaves: number, numRanks: number): number[] {
  const least = Math.floor(leaves / numRanks);
  const numLarger = leaves % numRanks;
  return Array.from({ length: numRanks }, (_, rank) => (rank < numLarger ? least + 1 : least));
}
