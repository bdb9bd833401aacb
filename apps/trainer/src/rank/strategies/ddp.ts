// The whole model on each rank, in 16 bits beside f32 masters; gradients are added up in buckets
// during backward.

import { type DdpOptions, DistributedDataParallel } from '@shardweave/ddp-buckets';
import { type AdamW, packParameters } from '@shardweave/nn';
import { materialize } from '@shardweave/nn/flat';
import { COMPUTE_DTYPES } from '../../run-config.js';
import type { TaskModule } from '../objectives/objective.js';
import { adamW, bytesOf, trainedParameters, wholeModel } from './model-parts.js';
import type { Strategy, StrategyOptions } from './strategy.js';

/** What a rank of ddp has, whoever the other ranks are. */
export interface Replica {
  readonly model: TaskModule;
  readonly optimizer: AdamW;
  readonly shardBytes: number;
  /** Frees the model. */
  dispose(): void;
}

/** Opens the model of a run with its first weights. */
export async function openReplica(options: Omit<StrategyOptions, 'groups'>): Promise<Replica> {
  const { config } = options;
  const model = await wholeModel(options);
  const shardBytes = bytesOf(model.parameters());
  const computeDType = COMPUTE_DTYPES[config.precision];
  const packed = computeDType === 'f32' ? undefined : packParameters(model, { computeDType });
  await materialize(model);
  const optimizer = adamW(trainedParameters(model), config);
  const dispose = () => {
    model.dispose();
    packed?.dispose();
  };
  return { model, optimizer, shardBytes, dispose };
}

/** A strategy that has more to do where a job's ranks change. */
export interface ReplicaStrategy extends Strategy {
  readonly ddp: DistributedDataParallel;
}

/**
 * Trains a replica together with those of a group.
 * @param options `initSync`: whether rank 0's values go to all at first; see DdpOptions
 */
export function wrapReplica(
  { model, optimizer, shardBytes, dispose }: Replica,
  { config, groups }: Pick<StrategyOptions, 'config' | 'groups'>,
  options: Pick<DdpOptions, 'initSync'> = {},
): ReplicaStrategy {
  const { gradientGroups } = config;
  const ddp = new DistributedDataParallel(model, {
    initSync: options.initSync ?? true,
    processGroup: groups.reduce,
    gradientAverage: false, // losses are divided by all ranks' targets before backward
    allreduceAlwaysFp32: config.fp32Reduce || gradientGroups !== undefined,
    gradientGroups,
  });
  return {
    ddp,
    module: ddp,
    optimizer,
    shardBytes,
    initialize: () => ddp.initialize(),
    noSync: (run) => ddp.noSync(run),
    step: async (options) => {
      await optimizer.step(options);
      if (ddp.numericClasses.length > 1) {
        await ddp.syncParameters({ onlyTrained: true }); // each device has rounded its own
      }
    },
    isSavedBeside: true,
    text: { model },
    dispose: async () => {
      ddp.unwrap();
      dispose();
    },
  };
}

export async function openDdp(options: StrategyOptions): Promise<Strategy> {
  return wrapReplica(await openReplica(options), options);
}
