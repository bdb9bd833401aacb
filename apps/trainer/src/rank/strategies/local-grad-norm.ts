// The norm of gradients that this rank has all of, wherever they rest.

import { streamedSquaredGradNorm } from '@shardweave/nn';
import type { Tensor } from '@shardweave/tensor-core';

/** Waits for the device. */
export async function localGradNorm(parameters: readonly Tensor[]): Promise<number> {
  const { device } = parameters[0]!;
  return Math.sqrt(
    await device.scope(async () => (await streamedSquaredGradNorm(parameters)).item()),
  );
}
