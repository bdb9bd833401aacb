// Tests use this sharded GPT-2, and the unsharded run that specifies its results.

import { type FsdpOptions, FullyShardedDataParallel } from '@shardweave/fsdp';
import {
  AdamW,
  checkpoint,
  clipGradNorm,
  Gpt2,
  type Gpt2Block,
  type Gpt2Config,
  Sgd,
} from '@shardweave/nn';
import { type Backend, Device } from '@shardweave/tensor-core';
import {
  forwardBackward,
  optimizerGroups,
  type Rank,
  sharedBackend,
  TINY,
} from '../../../../tooling/vitest/training-ranks.ts';

export {
  forwardBackward,
  onRanks,
  optimizerGroups,
  type Rank,
  TINY,
  tokens,
} from '../../../../tooling/vitest/training-ranks.ts';

/** Returns a GPT-2 with each block and the root wrapped. */
export function shardedGpt2(
  { device, group }: Rank,
  options: {
    readonly config?: Partial<Gpt2Config>;
    readonly fsdp?: Partial<FsdpOptions>;
    /** Whether each block is checkpointed inside its sharding. The default is false. */
    readonly isCheckpointing?: boolean;
    /** Whether initial values are drawn only when the model is sharded. The default is false. */
    readonly deferInit?: boolean;
  } = {},
): { model: FullyShardedDataParallel; gpt2: Gpt2 } {
  const { deferInit = false } = options;
  const gpt2 = new Gpt2(device, { ...TINY, ...options.config }, { seed: 3, deferInit });
  const names = [...gpt2.children().keys()];
  for (const name of names.slice(1, -1)) {
    const bare = gpt2.children().get(name)! as Gpt2Block;
    const block = options.isCheckpointing === true ? checkpoint(bare) : bare;
    gpt2.replaceChild(
      name,
      new FullyShardedDataParallel(block, {
        processGroup: group,
        name: `block ${name}`,
        ...options.fsdp,
      }),
    );
  }
  const model = new FullyShardedDataParallel(gpt2, {
    processGroup: group,
    name: 'root',
    ...options.fsdp,
  });
  return { model, gpt2 };
}

/** Runs an unsharded training, which specifies the results of every sharded one. */
export async function singleRun(
  steps: number,
  batch: number,
  options: {
    readonly optimizer?: 'adamw' | 'sgd';
    readonly dropout?: number;
    readonly clip?: number;
    readonly backend?: Backend;
  } = {},
): Promise<{ losses: number[]; weights: Map<string, Float32Array> }> {
  const backend = options.backend ?? (await sharedBackend());
  const device = new Device(backend, { seed: 7 });
  const dropout = options.dropout ?? 0;
  const model = new Gpt2(
    device,
    { ...TINY, embd_pdrop: dropout, attn_pdrop: dropout },
    { seed: 3 },
  );
  const groups = optimizerGroups(model);
  const optimizer =
    options.optimizer === 'sgd'
      ? new Sgd(groups, { lr: 0.1, momentum: 0.9 })
      : new AdamW(groups, { lr: 1e-2 });
  const losses: number[] = [];
  for (let step = 0; step < steps; step++) {
    const rows = { batch, first: 0, count: batch };
    losses.push(await forwardBackward(device, model, step, rows));
    await device.scope(async () => {
      const { clip } = options;
      if (clip === undefined) {
        await optimizer.step();
      } else {
        await optimizer.step({ gradScale: (await clipGradNorm(model, clip)).scale });
      }
    });
    optimizer.zeroGrad();
  }
  const weights = new Map<string, Float32Array>();
  for (const [name, tensor] of model.namedParameters()) {
    weights.set(name, (await tensor.toArray()) as Float32Array);
  }
  if (options.backend === undefined) {
    device.dispose();
  }
  return { losses, weights };
}
