// The seam for what single, fsdp, ddp and offload do differently: where parameters rest, how
// gradients are added up, and how weights come and go. Everything above it trains in one way.

import type { PieceReader, PieceStore } from '@shardweave/checkpoint';
import type { ProcessGroup } from '@shardweave/collectives';
import type { AdamW, CapturedModule, Module, StepOptions, TokenArgs } from '@shardweave/nn';
import type { ShardStore } from '@shardweave/shard-store';
import type { Device, Tensor } from '@shardweave/tensor-core';
import type { ModelState } from '../../model/model-directory.js';
import type { RunConfig } from '../../run-config.js';

/** The part of a save that is loaded. */
export interface LoadedParts {
  /** Whether the save has no optimizer state, so that the run's own stays as it is. */
  readonly isWeightsAlone: boolean;
}

/** One rank's model with its optimizer. All ranks make the collective calls alike. */
export interface Strategy {
  /**
   * The model: ids [rows, seq] (u32) to logits [rows, seq, vocab], or, with targets, to losses
   * [rows, seq].
   */
  readonly module: Module<TokenArgs, Tensor>;
  readonly optimizer: AdamW;
  /** The bytes of this rank's f32 parameters, padding included. */
  readonly shardBytes: number;

  /** Brings parameters to where they rest; once, before the first step. Collective. */
  initialize(): Promise<void>;

  /** Runs a forward and backward whose gradients wait for those of a later one. */
  noSync<T>(run: () => Promise<T>): Promise<T>;

  /**
   * The norm of all gradients as they are, equal on all ranks; not finite where one of them is not.
   * Collective.
   */
  gradNorm(): Promise<number>;

  /**
   * Updates the parameters, and commits what rests on disk. Collective where whole models are on
   * devices that round differently: all ranks then get rank 0's.
   */
  step(options: StepOptions): Promise<void>;

  /** Loads a save of any strategy on any number of ranks, or only its weights. Collective. */
  load(reader: PieceReader, what: LoadedParts): Promise<unknown>;

  /** How this rank's part of the weights and optimizer state is saved. */
  readonly saving: Saving;

  /**
   * The trained parameters for rank 0, gathered on the host, or read from where they rest when they
   * are asked for; empty for the other ranks of fsdp. Frozen ones stay where they are. Collective.
   */
  stateDict(): Promise<ModelState>;

  /** What makes text when training is over: the trained model as it rests. */
  readonly text: TextModel;

  /** Frees the model, and closes what it rests in. The optimizer is the caller's. */
  dispose(): Promise<void>;
}

/** A model that makes text where it has been trained, so that no second one is loaded. */
export interface TextModel {
  readonly model: Module<TokenArgs, Tensor>;
  /** The ranks that run its forward together. Absent where each can run it alone. */
  readonly group?: ProcessGroup;
}

/**
 * How a save is written. State on the device is written beside steps, which wait where they would
 * change it first, and state on disk is pinned there. Other state is written before the next step.
 */
export type Saving =
  | {
      /** This rank's part as it is now; undefined where other ranks have all of it. Collective. */
      capture(): Promise<CapturedModule | undefined>;
    }
  | {
      /**
       * Writes and publishes the parts of all ranks, a little at a time, with `extra` beside them.
       * Collective.
       */
      save(store: PieceStore, extra: Readonly<Record<string, unknown>>): Promise<void>;
    };

export interface StrategyOptions {
  readonly device: Device;
  readonly config: RunConfig;
  readonly groups: RankGroups;
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
  /**
   * A group of this rank alone, over which a 16-bit replica of ddp is sharded; undefined for
   * everything else.
   */
  readonly alone?: ProcessGroup | undefined;
}
