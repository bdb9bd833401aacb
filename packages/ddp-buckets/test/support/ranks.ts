// These are small models whose gradients are known exactly, and functions that wrap and step them.

import { type DdpOptions, DistributedDataParallel } from '@shardweave/ddp-buckets';
import { type FsdpOptions, FullyShardedDataParallel } from '@shardweave/fsdp';
import { AdamW, Gpt2, Module, Sgd } from '@shardweave/nn';
import { add, cast, type Device, type DType, mul, sum, type Tensor } from '@shardweave/tensor-core';
import { onRanks, optimizerGroups, type Rank, TINY } from '../../../../tooling/test-kit/index.ts';

export {
  forwardBackward,
  onRanks,
  optimizerGroups,
  type Rank,
  TINY,
  tokens,
  weightsOf,
} from '../../../../tooling/test-kit/index.ts';

export function tinyGpt2(device: Device): Gpt2 {
  return new Gpt2(device, TINY, { seed: 3 });
}

/** Shards a GPT-2, each of its blocks by itself. */
export function shardedBlocks(gpt2: Module, options: FsdpOptions): FullyShardedDataParallel {
  for (const [name, block] of [...gpt2.children()].slice(1, -1)) {
    gpt2.replaceChild(name, new FullyShardedDataParallel(block, options));
  }
  return new FullyShardedDataParallel(gpt2, options);
}

/** Buckets for a few parameters each, so that a small model has several. */
export const SMALL_BUCKETS = { firstBucketBytes: 512, bucketCapBytes: 4096 };

export function makeOptimizer(model: Module, kind: 'adamw' | 'sgd'): AdamW | Sgd {
  const groups = optimizerGroups(model);
  return kind === 'sgd' ? new Sgd(groups, { lr: 0.03 }) : new AdamW(groups, { lr: 1e-2 });
}

/** The size of each parameter, with a dtype where that is not f32. */
export type BagSpec = Readonly<Record<string, number | readonly [size: number, dtype: DType]>>;

/**
 * The gradients of these parameters are known exactly: each element of a used one gets `factor`
 * times the parameter's number (from 1). The last used one gets its gradient first.
 */
export class Bag extends Module<[factor: number, used?: readonly string[]], Tensor> {
  constructor(device: Device, spec: BagSpec) {
    super(device);
    for (const [name, entry] of Object.entries(spec)) {
      const [size, dtype] = typeof entry === 'number' ? [entry, 'f32' as const] : entry;
      this.parameter(name, device.zeros([size], { dtype })).name = name;
    }
  }

  forward(factor: number, used: readonly string[] = [...this.ownParameters().keys()]): Tensor {
    const { device } = this;
    const names = [...this.ownParameters().keys()];
    let total = device.zeros([1], { requiresGrad: false });
    for (const name of used) {
      const weight = device.full([1], factor * (1 + names.indexOf(name)));
      const parameter = this.ownParameters().get(name)!;
      total = add(total, sum(mul(cast(parameter, 'f32'), weight)));
    }
    return total;
  }

  get(name: string): Tensor {
    return this.ownParameters().get(name)!;
  }
}

/** Runs forward and backward of a Bag. */
export async function pull(model: Module, factor: number, used?: readonly string[]): Promise<void> {
  await model.device.scope(async () => {
    const total: Tensor = await model.call(factor, used);
    await total.backward();
  });
}

/**
 * Returns the first element of each parameter's gradient, after checking that the others are equal.
 */
export async function pulled(model: Module): Promise<Record<string, number | undefined>> {
  const found: Record<string, number | undefined> = {};
  for (const [name, { grad }] of model.namedParameters()) {
    const values = grad === undefined ? undefined : await grad.toArray();
    found[name] = values?.[0];
    if (values?.some((value) => value !== values[0]) === true) {
      found[name] = Number.NaN;
    }
  }
  return found;
}

export function wrap<M extends Module>(
  module: M,
  { group }: Pick<Rank, 'group'>,
  options: Partial<DdpOptions> = {},
): DistributedDataParallel {
  return new DistributedDataParallel(module, { processGroup: group, ...options });
}

/** A rank with a Bag, bare and wrapped. */
export interface BagRank {
  readonly rank: Rank;
  readonly bag: Bag;
  readonly model: DistributedDataParallel;
}

/** Runs a body on every rank at once, each with a wrapped Bag. */
export function onBags<T>(
  worldSize: number,
  spec: BagSpec,
  options: Partial<DdpOptions>,
  body: (each: BagRank) => Promise<T>,
): Promise<T[]> {
  return onRanks(worldSize, (rank) => {
    const bag = new Bag(rank.device, spec);
    return body({ rank, bag, model: wrap(bag, rank, options) });
  });
}
