// One rank's model, sharded, replicated or alone, with its optimizer: what nn, fsdp and ddp-buckets
// make of a run's flags.

import type { ProcessGroup } from '@shardweave/collectives';
import { DistributedDataParallel } from '@shardweave/ddp-buckets';
import { defaultPredivide, FullyShardedDataParallel } from '@shardweave/fsdp';
import { AdamW, checkpoint, type Gpt2, type Module, packParameters } from '@shardweave/nn';
import { OffloadModel } from '@shardweave/offload';
import { createHostStore, type ShardStore } from '@shardweave/shard-store';
import type { Tensor } from '@shardweave/tensor-core';
import type { RunConfig } from '../run-config.js';

/** What a step needs of a model. */
export interface TrainingModel {
  /** ids [rows, seq] (u32) to logits [rows, seq, vocab]. */
  readonly module: Module<[ids: Tensor], Tensor>;
  /** The sharding around it; none where one rank trains in f32. */
  readonly fsdp: FullyShardedDataParallel<[ids: Tensor], Tensor> | undefined;
  /** The whole model on each rank. */
  readonly ddp?: DistributedDataParallel<[ids: Tensor], Tensor>;
  /** The model resting off the device. */
  readonly offload?: OffloadModel<[ids: Tensor], Tensor>;
  readonly optimizer: AdamW;
  /** Trainable numbers of the whole model, tied once, no padding. */
  readonly params: number;
  /** Of this rank's f32 parameters, padding included. */
  readonly shardBytes: number;
  dispose(): void | Promise<void>;
}

/** The two sequences of collectives that sharding uses; on one rank they may be one. */
export interface ShardGroups {
  /** Parameters are gathered, losses and norms summed here. */
  readonly gather: ProcessGroup;
  /** Gradients are reduced here, and so don't wait for parameters, nor the other way round. */
  readonly reduce: ProcessGroup;
}

/**
 * Wraps a fresh model as the run asks, `store` holding what fsdp keeps off the device: each block checkpointed, sharded, the rest one unit at the
 * root. One rank in 16 bits is a sharding over one rank, which is mixed precision alone.
 */
export function trainingModel(
  model: Gpt2,
  config: RunConfig,
  groups: ShardGroups | undefined,
  store?: ShardStore,
): TrainingModel {
  const named = model.namedParameters();
  const params = named.reduce((sum, [, { size }]) => sum + size, 0);
  const blocks = model.layers().slice(1, -1);
  if (config.checkpointActivations) {
    blocks.forEach((block, i) => {
      model.replaceChild(String(i + 1), checkpoint(block));
    });
  }
  const parameters = named.map(([, tensor]) => tensor);
  if (groups === undefined) {
    const packed = packParameters(model);
    return {
      module: model,
      fsdp: undefined,
      optimizer: adamW(parameters, config),
      params,
      shardBytes: packed.flat.size * 4,
      dispose: () => {
        model.dispose();
        packed.dispose();
      },
    };
  }
  if (config.strategy === 'ddp') {
    const ddp = new DistributedDataParallel(model, {
      processGroup: groups.reduce,
      // fsdp's, so that both round alike.
      gradientPredivideFactor: defaultPredivide(groups.reduce.worldSize),
    });
    return {
      module: ddp,
      fsdp: undefined,
      ddp,
      optimizer: adamW(parameters, config),
      params,
      shardBytes: params * 4,
      dispose: () => ddp.dispose(),
    };
  }
  const shard = <Args extends readonly unknown[], Output>(
    module: Module<Args, Output>,
    name: string,
  ) =>
    new FullyShardedDataParallel<Args, Output>(module, {
      ...fsdpOptions(config, groups),
      ...(store === undefined ? {} : { offloadConfig: { store } }),
      name,
    });
  model
    .layers()
    .slice(1, -1)
    .forEach((block, i) => {
      model.replaceChild(String(i + 1), shard(block, `h.${i}`));
    });
  const fsdp = shard<[ids: Tensor], Tensor>(model, 'root');
  const shardBytes = fsdp
    .instances()
    .flatMap(({ units }) => units)
    .reduce((sum, { flat }) => sum + flat.size * 4, 0);
  return {
    module: fsdp,
    fsdp,
    optimizer: adamW(parameters, config),
    params,
    shardBytes,
    dispose: async () => {
      fsdp.dispose();
      await store?.close();
    },
  };
}

/** Wraps a fresh model so that it rests in `store`, which it closes in the end. */
export function offloadedModel(
  model: Gpt2,
  config: RunConfig,
  store: ShardStore = createHostStore(),
): TrainingModel {
  const parameters = model.parameters();
  const params = parameters.reduce((sum, { size }) => sum + size, 0);
  const offload = new OffloadModel<[ids: Tensor], Tensor>(model, {
    ...offloadOptions(config),
    store,
  });
  return {
    module: offload,
    fsdp: undefined,
    offload,
    optimizer: adamW(parameters, config),
    params,
    shardBytes: params * 4,
    dispose: async () => {
      offload.dispose();
      await store.close();
    },
  };
}

/** As training and sampling both have it. */
export function offloadOptions(config: RunConfig) {
  const { deviceBudgetBytes, slices, microBatches } = config;
  return {
    checkpointActivation: config.checkpointActivations,
    numMicrobatches: microBatches,
    computeDType: COMPUTE_DTYPES[config.precision],
    ...(deviceBudgetBytes === undefined ? {} : { deviceBudgetBytes }),
    ...(slices === undefined ? {} : { numSlices: slices }),
  };
}

/** What products are computed from. */
export const COMPUTE_DTYPES = { fp32: 'f32', fp16: 'f16', bf16: 'bf16' } as const;

function fsdpOptions(config: RunConfig, groups: ShardGroups) {
  const isMixed = config.precision !== 'fp32';
  return {
    processGroup: groups.gather,
    processGroupReduceScatter: groups.reduce,
    reshardAfterForward: config.reshard,
    ...(config.cpuOffload ? { moveParamsToCpu: true } : {}),
    mixedPrecision: isMixed,
    computeDType: COMPUTE_DTYPES[config.precision],
    fp32ReduceScatter: isMixed && config.fp32Reduce,
    // Each block's reduction starts when its gradient is final, and hides behind the blocks below.
    bucketCapMb: 0,
    ...(config.gatherCapBytes === undefined ? {} : { gatherCapBytes: config.gatherCapBytes }),
  };
}

/** Weight decay is for matrices and tables; gains and biases go without. */
function adamW(parameters: readonly Tensor[], config: RunConfig): AdamW {
  const { lr, beta1, beta2, eps, weightDecay } = config;
  const groups = [
    { params: parameters.filter(({ rank }) => rank >= 2), weightDecay },
    { params: parameters.filter(({ rank }) => rank < 2), weightDecay: 0 },
  ];
  return new AdamW(groups, { lr, betas: [beta1, beta2], eps });
}
