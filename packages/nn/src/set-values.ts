// Writes new values into an existing tensor.

import type { Shape, Tensor } from '@shardweave/tensor-core';

/**
 * Writes the tensor that `make` returns for target's shape into target, converted to its dtype, and
 * frees what `make` has made.
 */
export function setValues(target: Tensor, make: (shape: Shape) => Tensor): void {
  const { device } = target;
  device.noGrad(() => device.scope(() => device.copyInto(target, make(target.shape))));
}
