// The order in which a norm adds up, whoever has the gradients. Pure arithmetic on the host.
//
// Note [order of a norm]
// A parameter's gradient is cut into blocks of 128 elements, the last one shorter. Node k of level
// l of its tree covers blocks [k * 2^l, (k + 1) * 2^l), as far as there are any, and is the f32 sum
// of its two halves; a half without blocks adds nothing. The roots of all trained parameters, in
// the order of module.parameters(), are the blocks of one more tree of that kind. So a range of
// blocks is a few nodes, wherever ranks, stores or visits cut it, and all of them come to the same
// bits. Numbers: 5 blocks are ((0 + 1) + (2 + 3)) + 4, and blocks 3 to 5 of 8 are node 3, then node
// (4 + 5).

import { NORM_BLOCK_ELEMENTS, NORM_NODE_ELEMENTS } from '@shardweave/tensor-core';

/** Blocks [start, end) of a parameter that has `total`. */
export interface BlockRange {
  readonly start: number;
  readonly end: number;
  readonly total: number;
}

/**
 * Place of a node in the tree of Note [order of a norm]: it covers blocks [index * 2^level, (index
 * + 1) * 2^level).
 */
export interface NormNode {
  readonly level: number;
  readonly index: number;
}

/** A node with the sum that it stands for. */
export interface NormValue extends NormNode {
  readonly value: number;
}

/** Level of the nodes that the device's kernel gives. */
export const DEVICE_LEVEL = Math.log2(NORM_NODE_ELEMENTS / NORM_BLOCK_ELEMENTS);

/**
 * The blocks of a parameter of `size` elements of which elements [start, start + length) are here.
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

/** The largest nodes that make up a range, ascending; none above `maxLevel`. */
export function normCover({ start, end, total }: BlockRange, maxLevel = 32): NormNode[] {
  const nodes: NormNode[] = [];
  // A last node may reach beyond the last block.
  const limit = end === total ? 2 ** Math.ceil(Math.log2(total)) : end;
  for (let at = start; at < end; ) {
    let level = Math.min(maxLevel, Math.floor(Math.log2(limit - at)));
    while (at % 2 ** level !== 0) {
      level -= 1;
    }
    nodes.push({ level, index: at / 2 ** level });
    at += 2 ** level;
  }
  return nodes;
}

/**
 * The value of the node, or whole tree, that `nodes` make up without gaps, ascending. 0 for none.
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
    // Without gaps from the left edge on, two of one level that follow each other are halves of
    // one.
    while (open.at(-1)?.level === level) {
      value = join(open.pop()!.value, value);
      level += 1;
    }
    open.push({ level, value });
  }
  // What is left ends where the parameter does: it has no right neighbor and goes up as it is.
  let total = open.pop()?.value ?? 0;
  while (open.length > 0) {
    total = join(open.pop()!.value, total);
  }
  return total;
}

/**
 * The norm from the root of every trained parameter, in the order of module.parameters(). The
 * 2-norm is an f32.
 */
export function normOfRoots(roots: readonly number[], normType: number): number {
  const values = roots.map((value) => ({ level: 0, value }));
  const total = joinNormValues(values, normType === Infinity);
  if (normType === Infinity) {
    return total;
  }
  return normType === 2 ? Math.fround(Math.sqrt(total)) : total ** (1 / normType);
}
