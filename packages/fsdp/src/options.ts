// The options of FullyShardedDataParallel. What is derived from them is in resolve-options.ts.

import type { ProcessGroup } from '@shardweave/collectives';
import type { Tensor } from '@shardweave/tensor-core';
import type { ResidenceOptions } from './unit/placement.js';

/** Parameters that together become one flat parameter called `name`. */
export interface ParameterGroup {
  readonly name: string;
  readonly params: readonly Tensor[];
}

/** The ranks that share the parameters, and how these are sharded, gathered and reduced. */
export interface FsdpOptions extends ResidenceOptions {
  /**
   * The ranks that share the parameters. An instance inside may have another group: an expert that
   * is not shared has a group of its own rank alone.
   */
  readonly processGroup: ProcessGroup;
  /**
   * Where reductions run. 'reduceScatter' (default): in a second sequence that is split off
   * processGroup once, so that gathers and reductions don't wait for one another. 'default': in
   * processGroup itself. A process group of the same ranks: in that group.
   */
  readonly processGroupReduceScatter?: 'default' | 'reduceScatter' | ProcessGroup;
  /**
   * false: each rank holds the trained parameters whole, with their gradients and optimizer state,
   * and adds gradients up by all-reduces, as data parallelism does; only frozen ones are sharded
   * (adapters beside a base). Not with replicateGroup, nor with what rests off the device. All
   * instances of a tree have the same. Default true.
   */
  readonly shardTrained?: boolean;
  /**
   * Hybrid sharding: the ranks that hold the same shard, one in each replica of processGroup.
   * Reduced gradients are then added up over this group too.
   */
  readonly replicateGroup?: ProcessGroup;
  /**
   * true (default): all trained parameters of one dtype become one flat parameter, and so do the
   * frozen ones. false: each parameter is sharded on its own. A list of groups: each group becomes
   * one flat parameter of its name, and a parameter in no group is sharded on its own.
   */
  readonly flattenParameters?: boolean | readonly ParameterGroup[];
  /**
   * Frozen token tables, which are weights of Embedding and LanguageHead, are not gathered: each
   * rank has whole rows of them, and looks up, and scores, the tokens of all ranks with those. That
   * moves and holds less while all ranks' tokens are fewer than a fifth of the table's rows. Losses
   * are rounded otherwise than those of gathered tables. Logits outside the graph work, too; those
   * that a gradient may come to are an error. Tables that are trained, in blocks, or not of a
   * multiple of 128 numbers a rank are gathered. Not with gradientGroups, findUnusedParameters,
   * groups in flattenParameters, nor with what rests off the device. Default false.
   */
  readonly vocabParallel?: boolean;
  /**
   * Rank 0's initial values, buffers included, replace those of the other ranks at the first
   * collective call. Default true.
   */
  readonly syncModuleStates?: boolean;
  /** Free full parameters after forward and gather them again in backward. Default true. */
  readonly reshardAfterForward?: boolean;
  /**
   * The root keeps its full parameters from forward to backward, which uses them first. Default
   * true.
   */
  readonly disableReshardOnRoot?: boolean;
  /**
   * The shards of f32 parameters are masters, and computation and gathers use computeDType. Default
   * false.
   */
  readonly mixedPrecision?: boolean;
  /**
   * The dtype of computation. Default bf16 with mixedPrecision, else f32. Without mixedPrecision,
   * trained parameters must have this dtype already, and so have their shards (pure 16-bit
   * training). With it, parameters that are 16-bit already are computed with in their own dtype.
   */
  readonly computeDType?: 'f32' | 'f16' | 'bf16';
  /** Float buffers are cast to this dtype when the root's forward begins. Default computeDType. */
  readonly bufferDType?: 'f32' | 'f16' | 'bf16';
  /**
   * Cast 16-bit inputs of forward to f32, with autograd, which makes the module an f32 island. Not
   * with mixedPrecision. Default false.
   */
  readonly forceInputToFp32?: boolean;
  /**
   * Reduce gradients in f32 though computation is in 16 bits. Needs mixedPrecision. Default false.
   */
  readonly fp32ReduceScatter?: boolean;
  /**
   * A step is the rows of so many groups, each a forward and a backward of its own: `groupCalls`
   * tells which of them this rank runs. Their gradients are added in f32 in the order of one fixed
   * tree over the groups, so the bits do not depend on the number of ranks. Each call gathers and
   * reduces. All instances of a tree have the same. Default: each backward is reduced, and ranks
   * are added in rank order.
   */
  readonly gradientGroups?: number;
  /**
   * Gradients are divided by this factor before the reduction and by the number of ranks / factor
   * after it; with gradientGroups by the number of groups. Default: the smallest power of two that
   * is at least the square root of that number, or the largest one that divides it where that is
   * smaller (fairscale's rule).
   */
  readonly gradientPredivideFactor?: number;
  /**
   * The MiB of gradients that share one reduction. Small gradients wait until a bucket of this size
   * is full; a larger one is reduced at once. At most 0: each flat parameter is reduced as soon as
   * its gradient is final, which overlaps best where the whole model is not much larger than a
   * bucket. The root's value counts for its tree, but an instance whose own value is at most 0 is
   * not bucketed. Default 25.
   */
  readonly bucketCapMb?: number;
  /** The most bytes of full parameters that are gathered ahead of their use. Default 64 MiB. */
  readonly gatherCapBytes?: number;
  /** Where stateDict leaves values: as host bytes, or as tensors on the device. Default 'host'. */
  readonly stateDictDevice?: 'host' | 'device';
  /** stateDict gives all entries to the first rank and none to the others. Default false. */
  readonly stateDictOnRank0Only?: boolean;
  /**
   * The ranks hold different parameters in this instance (experts), so optimizer state stays on its
   * rank. Default: true for an inner instance of fewer ranks, replicas included, than the tree has.
   */
  readonly noBroadcastOptimState?: boolean;
  /**
   * Let resetParameters make new initial values. Default false, because it is easily called by
   * mistake.
   */
  readonly allowResetParameters?: boolean;
  /** toString tells the options and flat parameters too. Default false. */
  readonly verbose?: boolean;
  /**
   * A parameter that another rank's backward reaches and this rank's does not counts as having a
   * gradient of zeros; ranks agree on that at the start of each backward, by one small collective.
   * Default false: ranks that differ get an error that names the parameters. The root's value
   * counts.
   */
  readonly findUnusedParameters?: boolean;
  /**
   * The name of this instance in errors and traces. Default 'fsdp', because the module's path is
   * not known when it is wrapped.
   */
  readonly name?: string;
}
