// Gives the leaves of a flat that ends memory of their own again.

import type { DType, Tensor } from '@shardweave/tensor-core';

/** A leaf that points into a flat's copy. */
export interface GivenLeaf {
  readonly leaf: Tensor;
  /** The dtype that it had before. */
  readonly dtype: DType;
  /** Its values, [size]; undefined where they are to be loaded again. */
  readonly values: Tensor | undefined;
}

/** Queues a copy of the values, where there are some, and points the leaf to it. */
export function giveBack({ leaf, dtype, values }: GivenLeaf): void {
  const { device, blocks, size } = leaf;
  const own =
    blocks === undefined
      ? device.storage(size, dtype, 'parameter')
      : device.storage(blocks.words.size, 'u32', 'parameter');
  if (values === undefined) {
    own.absentHint = 'Its values went with the shards: load a state dict after wrapping it again.';
  } else {
    own.fill();
    device.run('cast', { x: values.view(), out: own.view() });
  }
  leaf.rebind(own, 0);
}
