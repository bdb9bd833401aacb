// The tree of SHA-256 over the elements of one tensor, as RFC 6962 builds it. No tensors.
//
// Note [leaves of a hash]
// A leaf is 1024 elements, eight blocks of Note [order of a norm], so it is 4 KiB in f32. Smaller
// ones would cost a call of the hash function each, which for 512 bytes takes longer than the hash
// itself; larger ones are cut more often. A shard ends between any two blocks, so it may cut a
// leaf: whoever has a part of one passes its bytes on, at most 4 KiB for each cut. Of whole leaves
// only digests leave a rank, and of those only the tops of whole subtrees. Five leaves of which
// rank 0 has the first three: it passes on (0 + 1) and 2, and rank 1 passes on 3 and 4.

import { NORM_BLOCK_ELEMENTS } from '@shardweave/tensor-core';

/** The elements of a leaf; the last one of a tensor may have fewer. */
export const LEAF_ELEMENTS = 8 * NORM_BLOCK_ELEMENTS;

/** The SHA-256 of bytes, as 32 bytes. The bytes are lent until it settles. */
export type Sha256 = (bytes: Uint8Array) => Uint8Array | Promise<Uint8Array>;

/** The first byte of what is hashed: no leaf can be given out for a node, nor a node for a root. */
const LEAF = 0;
const NODE = 1;

/** The digest of leaves [index * 2^level, (index + 1) * 2^level). */
export interface HashNode {
  readonly level: number;
  readonly index: number;
  readonly digest: Uint8Array;
}

/** The digests of `bytes`, which are whole leaves but for the last one of a tensor. */
export async function leafDigests(
  bytes: Uint8Array,
  leafBytes: number,
  sha256: Sha256,
): Promise<Uint8Array[]> {
  const count = Math.ceil(bytes.byteLength / leafBytes);
  const marked = new Uint8Array(bytes.byteLength + count);
  return Promise.all(
    Array.from({ length: count }, (_, i) => {
      const leaf = bytes.subarray(i * leafBytes, (i + 1) * leafBytes);
      const at = i * (leafBytes + 1);
      marked[at] = LEAF;
      marked.set(leaf, at + 1);
      return sha256(marked.subarray(at, at + 1 + leaf.byteLength));
    }),
  );
}

/** A row of nodes that is added to at its end. Two halves of a node become that node. */
export class HashRow {
  readonly nodes: HashNode[] = [];
  readonly #sha256: Sha256;

  constructor(sha256: Sha256) {
    this.#sha256 = sha256;
  }

  async add(node: HashNode): Promise<void> {
    let { level, index, digest } = node;
    for (let left = this.nodes.at(-1); left?.level === level; left = this.nodes.at(-1)) {
      if (left.index % 2 === 1) {
        break; // its own left half is on another rank
      }
      this.nodes.pop();
      digest = await this.#join(left.digest, digest);
      level += 1;
      index = left.index / 2;
    }
    this.nodes.push({ level, index, digest });
  }

  /** The root over all leaves, which have been added from the first one on. */
  async root(): Promise<Uint8Array> {
    let total: Uint8Array | undefined;
    for (const { digest } of this.nodes.toReversed()) {
      total = total === undefined ? digest : await this.#join(digest, total);
    }
    return total ?? (await this.#sha256(new Uint8Array(0)));
  }

  #join(left: Uint8Array, right: Uint8Array): Uint8Array | Promise<Uint8Array> {
    const both = new Uint8Array(1 + left.byteLength + right.byteLength);
    both[0] = NODE;
    both.set(left, 1);
    both.set(right, 1 + left.byteLength);
    return this.#sha256(both);
  }
}
