// Steps of groups of rows, each block of a model sharded by itself.

import {
  type FsdpOptions,
  FsdpStateError,
  FullyShardedDataParallel,
  setGradientDivideFactors,
} from '@shardweave/fsdp';
import type { Module } from '@shardweave/nn';
import { square, sum, type Tensor } from '@shardweave/tensor-core';
import { expect } from 'vitest';
import {
  errorsOnRanks,
  inputs,
  layer,
  moduleOf,
  type Rank,
  trainInGroups,
} from '../../../../tooling/test-kit/index.ts';

export type Given = Partial<FsdpOptions>;

/** Wraps a GPT-2 and each of its blocks, with sums of gradients and not means. */
export function wrapBlocks(gpt2: Module, { group: processGroup }: Rank, given: Given) {
  const options = { bucketCapMb: 0, ...given, processGroup };
  for (const [name, block] of [...gpt2.children()].slice(1, -1)) {
    gpt2.replaceChild(name, new FullyShardedDataParallel(block, { ...options, name }));
  }
  const model = new FullyShardedDataParallel(gpt2, options);
  setGradientDivideFactors(model, { predivide: 1, postdivide: 1 });
  return model;
}

/** Trains in groups, and returns the hash of the state on each rank. */
export function hashesBy(wrap: typeof wrapBlocks, ranks: number, given: Given) {
  return trainInGroups({ ranks, wrap: (gpt2, rank) => wrap(gpt2, rank, given) });
}

/** Expects that a step of eight groups is refused where some of its calls leave a unit out. */
export async function expectRefusal(given: Given, isUsing: (group: number) => boolean) {
  const errors = await errorsOnRanks(2, async ({ device, group: processGroup }) => {
    const options = { gradientGroups: 8, bucketCapMb: 0, ...given, processGroup };
    const parts = {
      own: new FullyShardedDataParallel(layer(device), { ...options, name: 'own' }),
      last: layer(device),
    };
    let usesOwn = false;
    const net = moduleOf(device, parts, async ({ own, last }, x: Tensor): Promise<Tensor> => {
      return last.call(usesOwn ? await own.call(x) : x);
    });
    const model = new FullyShardedDataParallel(net, options);
    for (const group of model.groupCalls) {
      usesOwn = isUsing(group!);
      await device.scope(async () => {
        const output: Tensor = await model.call(inputs(device, { first: group!, count: 1 }));
        await sum(square(output)).backward();
      });
    }
  });
  for (const error of errors) {
    expect(error).toBeInstanceOf(FsdpStateError);
    expect(error!.message).toMatch(/expected a gradient of 'own' in all 8 groups of a step/);
  }
}
