// The seam for what single, fsdp, ddp and offload do differently: where parameters rest, how
// gradients are added up, and how weights come and go. Everything above it trains in one way.

import type { ProcessGroup } from '@shardweave/collectives';
import type { AdamW, Module, StepOptions, TokenArgs } from '@shardweave/nn';
import type { ShardStore } from '@shardweave/shard-store';
import type { Device, Tensor } from '@shardweave/tensor-core';
import type { OpenedOwnModel } from '../../own-model/open-own-model.js';
import type { RunConfig } from '../../run-config.js';
import type { Objective, TaskModule } from '../objectives/objective.js';

/** One rank's model with its optimizer. All ranks make the collective calls alike. */
export interface Strategy {
  /**
   * The model: ids [rows, seq] (u32) to logits [rows, seq, vocab], or, with targets, to losses
   * [rows, seq].
   */
  readonly module: TaskModule;
  readonly optimizer: AdamW;
  /** The bytes of this rank's f32 parameters, padding included. */
  readonly shardBytes: number;

  /** Brings parameters to where they rest; once, before the first step. Collective. */
  initialize(): Promise<void>;

  /** Runs a forward and backward whose gradients wait for those of a later one. */
  noSync<T>(run: () => Promise<T>): Promise<T>;

  /**
   * Updates the parameters, and commits what rests on disk. Collective where whole models are on
   * devices that round differently: all ranks then get rank 0's.
   */
  step(options: StepOptions): Promise<void>;

  /**
   * Whether a save can be written beside steps: state is on the device, or in a store that can pin
   * it.
   */
  readonly isSavedBeside: boolean;

  /** What makes text when training is over: the trained model as it rests. */
  readonly text: TextModel;

  /** Frees the model, and closes what it rests in. The optimizer is the caller's. */
  dispose(): Promise<void>;
}

/** A strategy with what its run's task computes of a batch. */
export interface TaskStrategy extends Strategy {
  readonly objective: Objective;
  /** Whether frozen parameters are in files of their own, and in no save. */
  readonly onlyTrained: boolean;
}

/** A model that makes text where it has been trained, so that no second one is loaded. */
export interface TextModel {
  readonly model: Module<TokenArgs, Tensor>;
  /** The ranks that run its forward together. Absent where each can run it alone. */
  readonly group?: ProcessGroup;
}

export interface StrategyOptions {
  readonly device: Device;
  readonly config: RunConfig;
  readonly groups: RankGroups;
  /** The model that people have written; undefined for one of ours. */
  readonly own?: OpenedOwnModel | undefined;
  /** Opens the store that parameters rest in: a directory, or host memory. Default: `openStore`. */
  readonly openStore?: OpenStore | undefined;
}

/** @param directory undefined for host memory */
export type OpenStore = (directory: string | undefined) => Promise<ShardStore>;

/** The two sequences of collectives that a rank uses; on a single rank they may be one. */
export interface RankGroups {
  /** Gathers parameters, and sums losses and norms. */
  readonly gather: ProcessGroup;
  /** Reduces gradients, which so don't wait for parameters, nor parameters for them. */
  readonly reduce: ProcessGroup;
}
