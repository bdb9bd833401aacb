// The buffers of this model change. Tests that save and load state dicts use it, bare and sharded.

import { FullyShardedDataParallel } from '@shardweave/fsdp';
import { BatchNorm1d, Linear, type Module } from '@shardweave/nn';
import type { Device } from '@shardweave/tensor-core';
import { DIM, type Rank, Stack } from '../../../../tooling/test-kit/index.ts';

/** Returns a batch norm, whose buffers change, inside an instance of its own. */
export function withBuffers(
  device: Device,
  wrap: (module: Module) => Module = (module) => module,
): Module {
  return wrap(
    new Stack(device, [
      new Linear(device, { inFeatures: DIM, outFeatures: 33 }),
      wrap(new BatchNorm1d(device, { numFeatures: 33 })),
    ]),
  );
}

export function shardedWithBuffers({ device, group }: Rank, options: object = {}) {
  return withBuffers(
    device,
    (module) => new FullyShardedDataParallel(module, { processGroup: group, ...options }),
  ) as FullyShardedDataParallel;
}
