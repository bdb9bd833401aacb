// Conformance: sums in the order of a tree, whoever holds which of its leaves.

import { dealLeaves, type TreeNode, treeNodes, treeSums } from '@shardweave/dtypes/tree';
import type { ProcessGroup } from '../group/process-group.js';
import { type ConformanceCase, checkBytes, onRanks } from './harness.js';
import { expectedReduction, patternElements } from './patterns.js';

const SUM = { dtype: 'f32', op: 'sum' } as const;

export const treeCases: readonly ConformanceCase[] = [
  {
    name: 'sums in the order of a tree are those of one process',
    worldSizes: [1, 2, 3, 4, 8],
    run: (harness, worldSize) => {
      const leaves = worldSize === 8 ? 7 : 8; // in a world of 8 one rank has none
      const deals = [dealLeaves(leaves, worldSize), dealLeaves(leaves, worldSize).reverse()];
      const last = Array.from({ length: worldSize }, (_, r) => (r === worldSize - 1 ? leaves : 0));
      const inputs = (count: number) =>
        Array.from({ length: leaves }, (_, leaf) => patternElements(leaf, count, 'f32', count));
      const made = new Map([5, 20_011].map((count) => [count, inputs(count)] as const));
      return onRanks(harness, worldSize, async (group) => {
        for (const counts of [...deals, last]) {
          for (const parts of made.values()) {
            await checkAllReduce(group, parts, counts);
            await checkReduceScatter(group, parts, counts);
          }
        }
        // Two calls, each of which has some of the leaves: what the first one gives is held.
        await checkInCalls(group, made.get(5)!);
      });
    },
  },
  {
    name: 'sums in the order of a tree travel in segments, in place too',
    worldSizes: [3],
    run: (harness, worldSize) => {
      const parts = Array.from({ length: 5 }, (_, leaf) => patternElements(leaf, 700_001, 'f32'));
      const sum = sumOf(parts, leavesFrom(0, 5));
      return onRanks(harness, worldSize, async (group) => {
        const counts = [3, 0, 2];
        const own = ownNodes(group, parts, counts);
        const output = own.length === 0 ? new Uint8Array(sum.length) : own.subarray(0, sum.length);
        await group.allReduce(own, output, { ...SUM, tree: { leaves: 5, counts } });
        checkBytes(output, sum, 'allReduce in place');
      });
    },
  },
];

/** The sums that the parts of neighboring nodes make, one after the other. */
function sumOf(parts: readonly Uint8Array[], nodes: readonly TreeNode[], leaves = parts.length) {
  let at = 0;
  const sums = treeSums(leaves, nodes).map(({ numParts, merges }) => {
    const own = parts.slice(at, at + numParts);
    at += numParts;
    return expectedReduction(own, { ...SUM, merges });
  });
  return joined(sums);
}

function leavesFrom(first: number, count: number): TreeNode[] {
  return Array.from({ length: count }, (_, i) => ({ first: first + i, end: first + i + 1 }));
}

/** The sums of the nodes that a rank holds. */
function ownNodes(group: ProcessGroup, parts: readonly Uint8Array[], counts: readonly number[]) {
  const first = counts.slice(0, group.rank).reduce((sum, count) => sum + count, 0);
  const count = counts[group.rank]!;
  return sumOf(parts.slice(first, first + count), leavesFrom(first, count), parts.length);
}

async function checkAllReduce(
  group: ProcessGroup,
  parts: readonly Uint8Array[],
  counts: readonly number[],
): Promise<void> {
  const leaves = parts.length;
  const output = new Uint8Array(parts[0]!.length);
  const tree = { leaves, counts };
  await group.allReduce(ownNodes(group, parts, counts), output, { ...SUM, tree });
  checkBytes(output, sumOf(parts, leavesFrom(0, leaves)), `allReduce of [${counts}]`);
}

/** Each rank's part is some elements of the leaves' parts, more of them on later ranks. */
async function checkReduceScatter(
  group: ProcessGroup,
  parts: readonly Uint8Array[],
  leafCounts: readonly number[],
): Promise<void> {
  const { rank, worldSize } = group;
  const leaves = parts.length;
  const elements = parts[0]!.length / 4;
  const cut = (r: number) => Math.floor((elements * r * r) / worldSize ** 2);
  const counts = Array.from({ length: worldSize }, (_, r) => cut(r + 1) - cut(r));
  const output = new Uint8Array(counts[rank]! * 4);
  const tree = { leaves, counts: leafCounts };
  await group.reduceScatter(ownNodes(group, parts, leafCounts), output, { ...SUM, counts, tree });
  const sum = sumOf(parts, leavesFrom(0, leaves));
  const own = sum.subarray(cut(rank) * 4, cut(rank + 1) * 4);
  checkBytes(output, own, `reduceScatter of [${leafCounts}]`);
}

/** Leaves come a rank each, as many at a time as there are ranks; the last ranks may have none. */
async function checkInCalls(group: ProcessGroup, parts: readonly Uint8Array[]): Promise<void> {
  const { rank, worldSize } = group;
  const leaves = parts.length;
  const held: { readonly node: TreeNode; readonly bytes: Uint8Array }[] = [];
  const partBytes = parts[0]!.length;
  for (let first = 0; first < leaves; first += worldSize) {
    const counts = Array.from({ length: worldSize }, (_, r) => Number(first + r < leaves));
    const nodes = treeNodes(leaves, first, Math.min(worldSize, leaves - first));
    const output = new Uint8Array(nodes.length * partBytes);
    const own = parts[first + rank];
    const whole = own === undefined ? new Uint8Array(0) : repeated(own, worldSize);
    await group.reduceScatter(whole, output, { ...SUM, tree: { leaves, first, counts } });
    for (const [i, node] of nodes.entries()) {
      held.push({ node, bytes: output.subarray(i * partBytes, (i + 1) * partBytes) });
    }
  }
  const sum = sumOf(
    held.map(({ bytes }) => bytes),
    held.map(({ node }) => node),
    leaves,
  );
  checkBytes(sum, sumOf(parts, leavesFrom(0, leaves)), 'the sum of several calls');
}

function repeated(part: Uint8Array, times: number): Uint8Array {
  return joined(Array.from({ length: times }, () => part));
}

function joined(parts: readonly Uint8Array[]): Uint8Array {
  const whole = new Uint8Array(parts.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}
