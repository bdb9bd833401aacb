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
  /** What a rank alone saves, loads and hashes of it, whatever wraps the model. */
  readonly saved: TaskModule;
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
  return { model, saved: model, optimizer, shardBytes, dispose };
}

/** A strategy for the ranks that there are at present. */
export interface ReplicaStrategy extends Strategy {
  /** Frees all but what is trained, and gives the replica back. It sends nothing. */
  unwrap(): void;
  /** The milliseconds that the last backward and its forward took here; undefined: not known. */
  computeMs(): number | undefined;
}

interface DdpStrategy extends ReplicaStrategy {
  readonly ddp: DistributedDataParallel;
}

/** How a replica comes to the state of a job whose ranks have changed. */
export interface ReplicaState {
  /** Whether nobody has stepped yet, so that rank 0's values go to all. */
  readonly isFirst: boolean;
  /** Whether somebody copies what is trained and the optimizer's state from `root`. */
  readonly isCopied: boolean;
  readonly root: number;
}

/** Wraps a replica for the ranks of a group, and brings all of them to one state. Collective. */
export async function joinReplicas(
  replica: Replica,
  parts: Pick<StrategyOptions, 'config' | 'groups'> & Pick<DdpOptions, 'groupCounts'>,
  { isFirst, isCopied, root }: ReplicaState,
): Promise<DdpStrategy> {
  const { groupCounts } = parts;
  const wrapped = wrapReplica(replica, parts, { initSync: isFirst, groupCounts });
  try {
    await wrapped.initialize();
    if (isCopied) {
      // A frozen base is the same by its hash.
      const onlyTrained = parts.config.lora !== undefined;
      await wrapped.ddp.syncParameters({ root, onlyTrained });
      await wrapped.ddp.syncOptimizers({ root, optimizers: [replica.optimizer] });
    }
  } catch (error) {
    wrapped.unwrap();
    throw error;
  }
  return wrapped;
}

/**
 * Trains a replica together with those of a group.
 * @param options `initSync`: whether rank 0's values go to all at first; see DdpOptions
 */
export function wrapReplica(
  { model, optimizer, shardBytes, dispose }: Replica,
  { config, groups }: Pick<StrategyOptions, 'config' | 'groups'>,
  options: Pick<DdpOptions, 'initSync' | 'groupCounts'> = {},
): DdpStrategy {
  const { gradientGroups } = config;
  const ddp = new DistributedDataParallel(model, {
    initSync: options.initSync ?? true,
    processGroup: groups.reduce,
    gradientAverage: false, // losses are divided by all ranks' targets before backward
    allreduceAlwaysFp32: config.fp32Reduce || gradientGroups !== undefined,
    gradientGroups,
    groupCounts: options.groupCounts,
  });
  const unwrap = () => void ddp.unwrap();
  return {
    ddp,
    unwrap,
    computeMs: () => ddp.timings?.computeMs,
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
      unwrap();
      dispose();
    },
  };
}

export async function openDdp(options: StrategyOptions): Promise<Strategy> {
  return wrapReplica(await openReplica(options), options);
}
