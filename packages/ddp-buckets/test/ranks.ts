// Runs a test's body once per rank in one process: each rank its own Device over one backend, and
// its own end of an in-process group.

import { createMemoryGroup, type ProcessGroup } from '@shardweave/collectives';
import { type DdpOptions, DistributedDataParallel } from '@shardweave/ddp-buckets';
import { AdamW, Gpt2, type Gpt2Config, Module, Sgd } from '@shardweave/nn';
import {
  add,
  type Backend,
  cast,
  crossEntropy,
  Device,
  type DType,
  mul,
  sum,
  type Tensor,
  Trace,
} from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';

export const TINY: Partial<Gpt2Config> = {
  vocab_size: 37,
  n_positions: 8,
  n_embd: 12,
  n_layer: 3,
  n_head: 2,
  embd_pdrop: 0,
  attn_pdrop: 0,
  resid_pdrop: 0,
};

export interface Rank {
  readonly rank: number;
  readonly worldSize: number;
  readonly group: ProcessGroup;
  readonly device: Device;
}

/** Runs `body` on every rank at once and returns what each gave. */
export async function onRanks<T>(
  worldSize: number,
  body: (rank: Rank) => Promise<T>,
  options: {
    readonly backend?: Backend;
    readonly wrapGroup?: (group: ProcessGroup) => ProcessGroup;
  } = {},
): Promise<T[]> {
  const backend = options.backend ?? createReferenceBackend();
  const groups = createMemoryGroup(worldSize);
  try {
    return await Promise.all(
      groups.map(async (group, rank) => {
        const device = new Device(backend, { seed: 7, trace: new Trace({ rank }) });
        return body({ rank, worldSize, group: options.wrapGroup?.(group) ?? group, device });
      }),
    );
  } finally {
    for (const group of groups) {
      await group.close();
    }
    if (options.backend === undefined) {
      await backend.dispose();
    }
  }
}

export function tinyGpt2(device: Device): Gpt2 {
  return new Gpt2(device, TINY, { seed: 3 });
}

/** Buckets of a few parameters each, so that a small model has several. */
export const SMALL_BUCKETS = { firstBucketBytes: 512, bucketCapBytes: 4096 };

/** Token ids of a global batch, each row counting up by 5 from its own start: learnable. */
export function tokens(step: number, batch: number, seq: number, vocab: number) {
  const cut = (shift: number) =>
    Int32Array.from({ length: batch * seq }, (_, i) => {
      const row = Math.floor(i / seq);
      return (row * 11 + step * 3 + 5 * ((i % seq) + shift)) % vocab;
    });
  return { ids: cut(0), targets: cut(1) };
}

/** Rows [first, first + count) of a global batch's loss, mean over tokens; runs backward. */
export async function forwardBackward(
  device: Device,
  model: Module,
  step: number,
  rows: { readonly batch: number; readonly first: number; readonly count: number },
): Promise<number> {
  const seq = 8;
  const all = tokens(step, rows.batch, seq, 37);
  const part = (values: Int32Array) =>
    values.slice(rows.first * seq, (rows.first + rows.count) * seq);
  return device.scope(async () => {
    device.random.begin({ step, rowOffset: rows.first });
    const ids = device.tensor(part(all.ids), [rows.count, seq]);
    const targets = device.tensor(part(all.targets), [rows.count, seq]);
    const loss = crossEntropy(await model.call(ids), targets);
    await loss.backward();
    return loss.item();
  });
}

/** Decay on tensors of two or more dimensions only. */
export function optimizerGroups(model: Module) {
  const parameters = model.parameters();
  return [
    { params: parameters.filter((tensor) => tensor.rank >= 2), weightDecay: 0.1 },
    { params: parameters.filter((tensor) => tensor.rank < 2), weightDecay: 0 },
  ];
}

export function makeOptimizer(model: Module, kind: 'adamw' | 'sgd'): AdamW | Sgd {
  const groups = optimizerGroups(model);
  return kind === 'sgd' ? new Sgd(groups, { lr: 0.03 }) : new AdamW(groups, { lr: 1e-2 });
}

export async function weightsOf(module: Module): Promise<Map<string, Float32Array>> {
  const reads = module.namedParameters().map(async ([name, tensor]) => {
    return [name, ((await tensor.toArray()) as Float32Array).slice()] as const;
  });
  return new Map(await Promise.all(reads));
}

/** Sizes of parameters; with a dtype where that is not f32. */
export type BagSpec = Readonly<Record<string, number | readonly [size: number, dtype: DType]>>;

/**
 * Parameters whose gradients are known exactly: each element of one that is used gets `factor` times
 * the parameter's number (from 1). The last one used gets its gradient first.
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

/** Forward and backward of a Bag. */
export async function pull(model: Module, factor: number, used?: readonly string[]): Promise<void> {
  await model.device.scope(async () => {
    const total: Tensor = await model.call(factor, used);
    await total.backward();
  });
}

/** The first element of each parameter's gradient, after checking that the others are equal. */
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
