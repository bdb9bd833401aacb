// Adds up the parts of a tree's leaves as they come, one after the other: a binary counter of sums.
// While n leaves come it holds log2(n) + 1 sums at most, each that of a node.

import type { RankSum } from '../rank-sum.js';
import { isPair, type TreeNode } from './tree-nodes.js';

/** What a TreeSum is made of. */
export interface TreeSumOptions {
  /** The number of leaves of the tree. */
  readonly leaves: number;
  /** The bytes of a part, which is f32. */
  readonly byteLength: number;
  /** Memory for what `heldSums` says of the nodes to come, `byteLength` bytes each. */
  readonly memory: Uint8Array;
  readonly rankSum: Pick<RankSum, 'reduce'>;
}

/**
 * The sum of parts in the order of a tree. Parts come as those of neighboring nodes, in order.
 * @example
 * ```ts
 * import { fromF32Array, RankSum, toF32Array } from '@shardweave/dtypes';
 * import { TreeSum } from '@shardweave/dtypes/tree';
 *
 * const sum = new TreeSum({
 *   leaves: 3,
 *   byteLength: 4,
 *   memory: new Uint8Array(2 * 4), // 3 leaves make at most 2 sums that wait
 *   rankSum: await RankSum.create(),
 * });
 * for (const [leaf, value] of [2 ** 24, 1, 1].entries()) {
 *   await sum.push({ first: leaf, end: leaf + 1 }, fromF32Array([value], 'f32'));
 * }
 * console.log(sum.nodes.length, toF32Array(sum.bytes, 'f32')[0]); // logs 1 16777216
 * ```
 */
export class TreeSum {
  readonly #options: TreeSumOptions;
  readonly #nodes: TreeNode[] = [];

  constructor(options: TreeSumOptions) {
    this.#options = options;
  }

  /** The nodes whose sums are held, in order; one where all leaves have come. */
  get nodes(): readonly TreeNode[] {
    return this.#nodes;
  }

  /** The sums of `nodes`, one after the other, in the memory that was given. */
  get bytes(): Uint8Array {
    return this.#options.memory.subarray(0, this.#nodes.length * this.#options.byteLength);
  }

  /**
   * Takes the part of the next node; its bytes are the caller's again when the promise resolves.
   * One push comes after the other.
   * @throws {RangeError} for another node than the next one, and where the memory is full
   */
  async push(node: TreeNode, bytes: Uint8Array): Promise<void> {
    const { leaves, byteLength, memory } = this.#options;
    const nodes = this.#nodes;
    const top = nodes.at(-1);
    if (top !== undefined && top.end !== node.first) {
      throw new RangeError(
        `TreeSum: expected a node that begins with leaf ${top.end}, got leaf ${node.first}.`,
      );
    }
    if (top !== undefined && isPair(top, node, leaves)) {
      await this.#add(this.#slot(nodes.length - 1), bytes);
      nodes[nodes.length - 1] = { first: top.first, end: node.end };
    } else {
      if ((nodes.length + 1) * byteLength > memory.byteLength) {
        throw new RangeError(
          `TreeSum: expected memory for ${nodes.length + 1} sums of ${byteLength} bytes, got ${memory.byteLength} bytes.`,
        );
      }
      this.#slot(nodes.length).set(bytes);
      nodes.push(node);
    }
    for (let last = nodes.length - 1; last > 0; last--) {
      const [left, right] = [nodes[last - 1]!, nodes[last]!];
      if (!isPair(left, right, leaves)) {
        return;
      }
      await this.#add(this.#slot(last - 1), this.#slot(last));
      nodes.pop();
      nodes[last - 1] = { first: left.first, end: right.end };
    }
  }

  #slot(index: number): Uint8Array {
    const { byteLength, memory } = this.#options;
    return memory.subarray(index * byteLength, (index + 1) * byteLength);
  }

  async #add(sum: Uint8Array, bytes: Uint8Array): Promise<void> {
    await this.#options.rankSum.reduce([sum, bytes], sum, { dtype: 'f32', op: 'sum' });
  }
}

/** The most sums that a TreeSum holds at once while these nodes come. */
export function heldSums(leaves: number, parts: readonly TreeNode[]): number {
  const nodes: TreeNode[] = [];
  let most = 0;
  for (const part of parts) {
    let node = part;
    for (let top = nodes.at(-1); top && isPair(top, node, leaves); top = nodes.at(-1)) {
      nodes.pop();
      node = { first: top.first, end: node.end };
    }
    nodes.push(node);
    most = Math.max(most, nodes.length);
  }
  return most;
}
