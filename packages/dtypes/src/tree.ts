// Sums in the order of one fixed binary tree, whoever holds which of its leaves.

export {
  dealLeaves,
  type TreeNode,
  type TreeSumPlan,
  treeNodes,
  treeSums,
} from './tree/tree-nodes.js';
export { heldSums, TreeSum, type TreeSumOptions } from './tree/tree-sum.js';
