// Tests end and resume this short training from a store, also in a process of its own.

import { createHash } from 'node:crypto';
import type { FsdpOptions, FullyShardedDataParallel } from '@shardweave/fsdp';
import { AdamW, type StateDict } from '@shardweave/nn';
import type { ShardStore } from '@shardweave/shard-store';
import { forwardBackward, optimizerGroups, type Rank } from '../../../../tooling/test-kit/index.ts';
import { shardedGpt2 } from './sharding.js';

export interface StoredTraining {
  readonly model: FullyShardedDataParallel;
  readonly optimizer: AdamW;
  /** Runs forward and backward. */
  backward(step: number): Promise<number>;
  /** Runs forward, backward, and the optimizer's step. */
  step(step: number): Promise<number>;
  dispose(): void;
}

export function storedTraining(
  rank: Rank,
  store: ShardStore | undefined,
  options: { readonly resume?: boolean; readonly fsdp?: Partial<FsdpOptions> } = {},
): StoredTraining {
  const { resume = false } = options;
  const offload = store === undefined ? {} : { offloadConfig: { store, resume } };
  const { model } = shardedGpt2(rank, {
    config: { n_layer: 2 },
    fsdp: { ...options.fsdp, ...offload },
  });
  const optimizer = new AdamW(optimizerGroups(model), { lr: 1e-2 });
  const { worldSize, device } = rank;
  const rows = { batch: 2 * worldSize, first: 2 * rank.rank, count: 2 };
  const backward = (step: number) => forwardBackward(device, model, step, rows);
  return {
    model,
    optimizer,
    backward,
    step: async (step) => {
      const loss = await backward(step);
      await optimizer.step();
      optimizer.zeroGrad();
      return loss;
    },
    dispose: () => {
      optimizer.dispose();
      model.dispose();
    },
  };
}

/** Returns a digest of each entry's bytes by name. Digests are equal only for equal bits. */
export function bitsOf(entries: StateDict): Record<string, string> {
  return Object.fromEntries(
    [...entries].map(([name, { data }]) => [name, createHash('sha256').update(data).digest('hex')]),
  );
}
