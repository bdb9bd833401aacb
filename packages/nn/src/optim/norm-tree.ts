// The order in which a norm adds up, which is the same wherever gradients are. Pure arithmetic on
// the host.
//
// Note [order of a norm]
// The gradient of a parameter is cut into blocks of 128 elements; the last block may be shorter. A
// binary tree stands over the blocks. Node k of level l covers blocks [k * 2^l, (k + 1) * 2^l), as
// far as they exist, and its value is the f32 sum of its two halves; a half without blocks adds
// nothing. The roots of all trained parameters, in the order of module.parameters(), are then the
// blocks of one more such tree.
// Every range of blocks is made of a few nodes. So ranks, stores and visits may cut a gradient
// between any two blocks, and the result still has the same bits. For example, five blocks add up
// as ((0 + 1) + (2 + 3)) + 4, and blocks 3 to 5 of eight are two nodes: block 3 alone, and (4 + 5).

import { floorLog2, pow64 } from '@shardweave/dtypes/float64';
import { NORM_BLOCK_ELEMENTS, NORM_NODE_ELEMENTS } from '@shardweave/tensor-core';

/** The blocks [start, end) of a parameter that has `total` blocks. */
export interface BlockRange {
  readonly start: number;
  readonly end: number;
  readonly total: number;
}

/**
 * The place of a node in the tree of Note [order of a norm]. It covers blocks [index * 2^level,
 * (index + 1) * 2^level).
 */
export interface NormNode {
  readonly level: number;
  readonly index: number;
}

/** A node and its value. */
export interface NormValue extends NormNode {
  readonly value: number;
}

/** The level of the largest nodes that the device's kernel computes. */
export const DEVICE_LEVEL = floorLog2(NORM_NODE_ELEMENTS / NORM_BLOCK_ELEMENTS);

/**
 * The blocks of elements [start, start + length) of a parameter of `size` elements. `start` is a
 * multiple of the block size.
 */
export function blockRange(size: number, start: number, length: number): BlockRange {
  const blocksTo = (element: number) => Math.ceil(element / NORM_BLOCK_ELEMENTS);
  const total = blocksTo(size);
  return {
    start: blocksTo(start),
    end: length === 0 ? blocksTo(start) : blocksTo(start + length),
    total,
  };
}

/**
 * The fewest nodes that make up a range of blocks, in ascending order and none above `maxLevel`.
 */
export function normCover({ start, end, total }: BlockRange, maxLevel = 32): NormNode[] {
  const nodes: NormNode[] = [];
  // The last node may reach beyond the last block, since halves without blocks add nothing.
  const limit = end === total ? pow64(2, floorLog2(2 * total - 1)) : end;
  for (let at = start; at < end; ) {
    let level = Math.min(maxLevel, floorLog2(limit - at));
    while (at % pow64(2, level) !== 0) {
      level -= 1;
    }
    nodes.push({ level, index: at / pow64(2, level) });
    at += pow64(2, level);
  }
  return nodes;
}

/**
 * The value of the node, or of the whole tree, that these nodes make up. They are in ascending
 * order and without gaps. Without nodes it is 0.
 */
export function joinNormValues(
  nodes: readonly Pick<NormValue, 'level' | 'value'>[],
  isMax: boolean,
): number {
  const join = (left: number, right: number) =>
    isMax ? Math.max(left, right) : Math.fround(left + right);
  const open: { level: number; value: number }[] = [];
  for (const node of nodes) {
    let { level, value } = node;
    // The nodes begin at a left edge and have no gaps, so two neighbors of one level are the halves
    // of one node.
    while (open.at(-1)?.level === level) {
      value = join(open.pop()!.value, value);
      level += 1;
    }
    open.push({ level, value });
  }
  // A node that is left over ends where the parameter does. It has no right neighbor, so its value
  // passes to its parent unchanged.
  let total = open.pop()?.value ?? 0;
  while (open.length > 0) {
    total = join(open.pop()!.value, total);
  }
  return total;
}

/**
 * The norm from the roots of all trained parameters, in the order of module.parameters(). The
 * 2-norm is rounded to f32.
 */
export function normOfRoots(roots: readonly number[], normType: number): number {
  const values = roots.map((value) => ({ level: 0, value }));
  const total = joinNormValues(values, normType === Infinity);
  if (normType === Infinity) {
    return total;
  }
  return normType === 2 ? Math.fround(Math.sqrt(total)) : pow64(total, 1 / normType);
}
