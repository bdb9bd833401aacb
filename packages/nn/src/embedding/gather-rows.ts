// The rows of all ranks as one tensor. This package does not depend on process groups, so an
// interface names the little that is needed of one.

import { affine, reshape, slice, type Tensor } from '@shardweave/tensor-core';

/**
 * The ranks whose embeddings are compared with one another. A ProcessGroup of
 * @shardweave/collectives is one. Give it a group of its own (`await group.split(0)`), not the one
 * that shards or reduces parameters: collectives of one group must start in the same order on all
 * ranks.
 */
export interface EmbeddingGroup {
  readonly rank: number;
  readonly worldSize: number;
  /** Gathers `input` of every rank into `output`, in rank order. All inputs are equally long. */
  allGather(input: Uint8Array, output: Uint8Array): Promise<void>;
}

/**
 * Gathers x [rows, width] (f32) of every rank: [worldSize, rows, width], bit for bit. Backward
 * waits for no rank. The gradient of a gather is the sum over ranks of what each has for these
 * rows; where every rank computes one and the same loss from the gathered rows, that sum is
 * worldSize times what this rank has already.
 */
export async function gatherRows(x: Tensor, group: EmbeddingGroup): Promise<Tensor> {
  const { device } = x;
  const { rank, worldSize } = group;
  const own = await x.toBytes();
  const all = new Uint8Array(own.byteLength * worldSize);
  await group.allGather(own, all);
  const out = device.tensor(new Float32Array(all.buffer), [worldSize, ...x.shape]);
  device.record({
    name: 'gatherRows',
    inputs: [x],
    outputs: [out],
    saved: [],
    backward: ([dy]) => {
      const rows = slice(dy!, { axis: 0, start: rank, end: rank + 1 });
      return [affine(reshape(rows, x.shape), worldSize, 0)];
    },
  });
  return out;
}
