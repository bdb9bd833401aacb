// Writes new values into a tensor that stays the same.

import type { Shape, Tensor } from '@shardweave/tensor-core';

/** target = make(its shape), converted to its dtype; what make gave is freed. */
export function setValues(target: Tensor, make: (shape: Shape) => Tensor): void {
  const { device } = target;
  device.noGrad(() => device.scope(() => device.copyInto(target, make(target.shape))));
}
