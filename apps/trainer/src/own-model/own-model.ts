// The contract of --model FILE.mjs: what a module that people write exports, what its `create` is
// given, and what it gives back.

import type * as nnPackage from '@shardweave/nn';
import type { Module, ParameterInit } from '@shardweave/nn';
import type * as tensorPackage from '@shardweave/tensor-core';
import type { Device, Tensor } from '@shardweave/tensor-core';

/** What a module's file exports. */
export interface OwnModelFile {
  /**
   * Makes the model of one rank, alike on all of them. It is called more than once in a process,
   * first on a device without memory that only counts, so what is read for it once is read outside.
   */
  create(options: CreateOptions): OwnModel | Promise<OwnModel>;
}

export interface CreateOptions {
  readonly device: Device;
  /**
   * The source of initial values, at the root of the model: `init.at('embed')` for a part of it.
   * Values depend on --seed and a parameter's path alone, and are drawn where they rest.
   */
  readonly init: ParameterInit;
  /** The trainer's own copies of the packages, for a file that can't or won't import them. */
  readonly nn: typeof nnPackage;
  readonly tensor: typeof tensorPackage;
  readonly seed: number;
  /** The number of tokens in a row of --data, and of those that there are. */
  readonly seq: number;
  readonly vocabularySize: number;
  /** What --precision computes in. Floats of a batch are to be cast to it. */
  readonly dtype: 'f32' | 'f16' | 'bf16';
}

// biome-ignore lint/suspicious/noExplicitAny: each file has batches of its own
export interface OwnModel<Batch = any> {
  /**
   * The model. The layers of a Sequential, and those in a ModuleList, are its blocks: they are
   * sharded, offloaded and checkpointed one by one. --strategy offload wants a Sequential.
   */
  readonly module: Module;
  /**
   * The sum of the losses of a batch's targets, one float. The trainer divides it by the number of
   * the step's targets on all ranks. `module` is the model as the run wraps it: call that.
   */
  readonly loss: (module: Module, batch: Batch) => Tensor | Promise<Tensor>;
  /** Rows of its own, in place of the tokens of --data, of which each batch is a TokenBatch. */
  readonly rows?: OwnRows<Batch> | undefined;
  /** Rows to evaluate on, each once. */
  readonly validRows?: OwnRows<Batch> | undefined;
}

/** Rows by their numbers. Which of them a step takes depends on --seed and the step alone. */
export interface OwnRows<Batch> {
  readonly count: number;
  /** The number of the targets that a row has, which its loss is the sum over. Default 1. */
  readonly targets?: ((row: number) => number) | undefined;
  /** Makes a batch of at least one row, for `loss`. */
  readonly batch: (rows: readonly number[]) => Batch | Promise<Batch>;
}

/** A batch of the rows of --data, u32 [rows, seq] each. */
export interface TokenBatch {
  readonly tokens: Tensor;
  /** The token after each token or, where no loss counts, a number beyond every vocabulary. */
  readonly targets: Tensor;
  /** With documents: the one of its row that a token belongs to, and the token's place in it. */
  readonly segments: Tensor | undefined;
  readonly positions: Tensor | undefined;
}
