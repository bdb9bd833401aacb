// What single, fsdp, ddp and offload do differently, in one seam: where parameters rest, how
// gradients meet, and how weights come and go. Everything above it is one way to train.

import type { PieceReader, PieceStore } from '@shardweave/checkpoint';
import type { ProcessGroup } from '@shardweave/collectives';
import type { AdamW, CapturedModule, Module, StepOptions, TokenArgs } from '@shardweave/nn';
import type { ShardStore } from '@shardweave/shard-store';
import type { Device, Tensor } from '@shardweave/tensor-core';
import type { ModelState } from '../../model/model-directory.js';
import type { RunConfig } from '../../run-config.js';

/** What of a save is loaded. */
export interface LoadedParts {
  /** A save without optimizer state; that of the run stays as it is. */
  readonly isWeightsAlone: boolean;
}

/** One rank's model with its optimizer. Collective calls are made by all ranks alike. */
export interface Strategy {
  /** ids [rows, seq] (u32) to logits [rows, seq, vocab], or to losses [rows, seq] of targets. */
  readonly module: Module<TokenArgs, Tensor>;
  readonly optimizer: AdamW;
  /** This rank's f32 parameters take so many bytes, padding included. */
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
   * Updates the parameters. What rests on disk is committed with it. Collective where whole models
   * are on devices that round differently: all have rank 0's then.
   */
  step(options: StepOptions): Promise<void>;

  /** Loads a save of any strategy on any number of ranks, or the weights alone. Collective. */
  load(reader: PieceReader, what: LoadedParts): Promise<unknown>;

  /** How what this rank holds of weights and optimizer state is saved. */
  readonly saving: Saving;

  /**
   * The whole model for rank 0, gathered on the host or read from where it rests when it is asked
   * for; nothing for others of fsdp. Collective.
   */
  stateDict(): Promise<ModelState>;

  /**
   * The whole model on one rank, to make text with when training is over; it is the strategy's.
   * What stands in its way on the device may be freed, so the module is not trained after it.
   * @param state of stateDict
   */
  textModel(state: ModelState): Promise<Module<TokenArgs, Tensor>>;

  /** Frees the model, and closes what it rests in. The optimizer is the caller's. */
  dispose(): Promise<void>;
}

/**
 * State on the device is written beside steps, which wait where they would overtake it, and what
 * rests on disk is pinned there. What rests elsewhere is written before the next step.
 */
export type Saving =
  | {
      /** This rank's part as it is now; nothing where others have all of it. Collective. */
      capture(): Promise<CapturedModule | undefined>;
    }
  | {
      /**
       * Writes and publishes all ranks' parts, a little at a time, with `extra` beside them.
       * Collective.
       */
      save(store: PieceStore, extra: Readonly<Record<string, unknown>>): Promise<void>;
    };

export interface StrategyOptions {
  readonly device: Device;
  readonly config: RunConfig;
  readonly groups: RankGroups;
  /** Opens what parameters rest in: a directory, or host memory. Default: `openStore`. */
  readonly openStore?: OpenStore | undefined;
}

/** @param directory undefined: host memory */
export type OpenStore = (directory: string | undefined) => Promise<ShardStore>;

/** The two sequences of collectives that a rank uses; on one rank they may be one. */
export interface RankGroups {
  /** Parameters are gathered, losses and norms summed here. */
  readonly gather: ProcessGroup;
  /** Gradients are reduced here, and so don't wait for parameters, nor the other way round. */
  readonly reduce: ProcessGroup;
  /** This rank alone, which a replica of ddp in 16 bits is sharded over; undefined for all else. */
  readonly alone?: ProcessGroup | undefined;
}
