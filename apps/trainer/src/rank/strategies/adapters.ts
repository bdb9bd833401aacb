// Adapters that each rank has whole beside a base in shards: for a job whose ranks may change, as
// any of them has all that a step changes, and the base is read again from its files.

import { syncReplicas } from '@shardweave/fsdp';
import { Module } from '@shardweave/nn';
import { dropRecipe, materialize } from '@shardweave/nn/flat';
import { UsageError } from '../../errors.js';
import { joinReplicas, type Replica, type ReplicaState, type ReplicaStrategy } from './ddp.js';
import { shardBlocks } from './fsdp.js';
import {
  adamW,
  bytesOf,
  checkpointBlocks,
  loadAdapters,
  loadBase,
  modelBlocks,
  restingModel,
  trainedParameters,
} from './model-parts.js';
import type { StrategyOptions } from './strategy.js';

/**
 * Opens the model of a run whose ranks may change: adapters with their first values, and a base
 * without any, of which each group of ranks cuts its own shards.
 * @throws {UsageError} where there are no adapters, or the base is in no file
 */
export async function openAdapters(options: Omit<StrategyOptions, 'groups'>): Promise<Replica> {
  const { config } = options;
  const { lora, model: source } = config;
  if (lora === undefined || source.kind !== 'directory' || !source.hasWeights) {
    throw new UsageError(
      `an elastic job: expected --lora-rank and a --model with weights with --strategy fsdp, got ${lora === undefined ? 'no adapters' : 'a model without any'}. Each rank has adapters whole, and reads its part of the base again where ranks change.`,
    );
  }
  const model = await restingModel(options);
  checkpointBlocks(modelBlocks(model, options), config);
  await loadAdapters(model, config);
  const trained = trainedParameters(model);
  for (const parameter of model.parameters()) {
    if (parameter.requiresGrad) {
      await materialize(parameter);
    } else {
      dropRecipe(parameter); // it is read from its file
    }
  }
  return {
    model,
    saved: new TrainedAlone(model),
    optimizer: adamW(trained, config),
    shardBytes: bytesOf(trained),
    dispose: () => model.dispose(),
  };
}

/** What is trained of a model, without the wrappers and the ranks that the rest of it needs. */
class TrainedAlone extends Module {
  constructor(model: Module) {
    super(model.device);
    for (const [path, tensor] of model.namedParameters()) {
      if (tensor.requiresGrad) {
        this.sharedParameter(path, tensor);
      }
    }
  }

  override forward(): never {
    throw new Error('TrainedAlone: it has no layers');
  }
}

/** Shards the base over the ranks of a group, beside adapters in one state. Collective. */
export async function joinAdapters(
  replica: Replica,
  parts: Pick<StrategyOptions, 'config' | 'groups' | 'own'>,
  state: ReplicaState,
): Promise<ReplicaStrategy> {
  const { config, groups } = parts;
  const { isFirst, isCopied } = state;
  const copied = await joinReplicas(replica, parts, {
    ...state,
    isFirst: false, // there is no base to send
    isCopied: isFirst || isCopied,
  });
  copied.unwrap();
  const { model, optimizer, shardBytes, dispose } = replica;
  const sharding = { config, groups, store: undefined, shardTrained: false };
  const fsdp = shardBlocks(model, modelBlocks(model, parts), sharding);
  const unwrap = () => void fsdp.unwrap();
  try {
    await loadBase(fsdp, config);
  } catch (error) {
    unwrap();
    throw error;
  }
  return {
    ...{ unwrap, module: fsdp, optimizer, shardBytes },
    computeMs: () => undefined,
    initialize: () => fsdp.initialize(),
    noSync: (run) => fsdp.noSync(run),
    step: async (options) => {
      await optimizer.step(options);
      if (fsdp.numericClasses.length > 1) {
        await syncReplicas(fsdp); // each device has rounded its own
      }
    },
    isSavedBeside: true,
    text: { model: fsdp, group: groups.gather },
    dispose: async () => {
      unwrap();
      dispose();
    },
  };
}
