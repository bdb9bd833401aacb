// The options of FullyShardedDataParallel; what follows from them: resolve-options.ts.

import type { ProcessGroup } from '@shardweave/collectives';
import type { Tensor } from '@shardweave/tensor-core';
import type { ResidenceOptions } from './unit/residence.js';

/** Parameters that become one flat parameter. */
export interface ParameterGroup {
  readonly name: string;
  readonly params: readonly Tensor[];
}

/** The ranks that share the parameters, and how these are sharded, gathered and reduced. */
export interface FsdpOptions extends ResidenceOptions {
  /**
   * The ranks that share the parameters. An instance inside may have another group: experts have
   * one of their own rank alone.
   */
  readonly processGroup: ProcessGroup;
  /**
   * Where reductions run. 'reduceScatter' (default): in a second sequence, split off processGroup
   * once, so that gathers and reductions don't wait for one another. 'default': in processGroup
   * itself. Or a group of the same ranks.
   */
  readonly processGroupReduceScatter?: 'default' | 'reduceScatter' | ProcessGroup;
  /**
   * Hybrid sharding: ranks that hold the same shard, one of each replica of processGroup. Reduced
   * gradients are added up over it too.
   */
  readonly replicateGroup?: ProcessGroup;
  /**
   * true (default): one flat parameter for all that are trained, one for the frozen. false: each
   * parameter is sharded on its own. Or groups, each made one flat parameter of its name;
   * parameters in none are sharded on their own.
   */
  readonly flattenParameters?: boolean | readonly ParameterGroup[];
  /** Initial values, buffers too, come from rank 0 at the first collective call. Default true. */
  readonly syncModuleStates?: boolean;
  /** Free full parameters after forward and gather them again in backward. Default true. */
  readonly reshardAfterForward?: boolean;
  /** The root keeps its parameters until backward, which starts with them. Default true. */
  readonly disableReshardOnRoot?: boolean;
  /**
   * Shards of f32 parameters are masters: computation and gathers are in computeDType. Default
   * false.
   */
  readonly mixedPrecision?: boolean;
  /**
   * Default f16 where mixedPrecision, else f32. Without mixedPrecision what is trained must have it
   * already (pure 16-bit: the shards too). 16-bit parameters are computed with in their own dtype.
   */
  readonly computeDType?: 'f32' | 'f16' | 'bf16';
  /** Float buffers are cast to it when the root's forward begins. Default computeDType. */
  readonly bufferDType?: 'f32' | 'f16' | 'bf16';
  /**
   * Cast 16-bit inputs of forward to f32, with autograd; for f32 islands. Not with mixedPrecision.
   */
  readonly forceInputToFp32?: boolean;
  /**
   * Reduce gradients in f32 though computation is in 16 bits. Needs mixedPrecision. Default false.
   */
  readonly fp32ReduceScatter?: boolean;
  /**
   * Gradients are divided by this before the reduction and by the number of ranks / this after it.
   * Default: the power of two nearest above the square root of worldSize that divides it
   * (fairscale's rule).
   */
  readonly gradientPredivideFactor?: number;
  /**
   * MiB of gradients that share a reduction: small ones wait for it, larger ones don't. At most 0:
   * each flat parameter is reduced as soon as its gradient is final, which overlaps best where the
   * whole model is not much larger than this. The root's counts, but at most 0 holds for an
   * instance of its own. Default 25.
   */
  readonly bucketCapMb?: number;
  /** Most bytes of full parameters gathered ahead of their use. Default 64 MiB. */
  readonly gatherCapBytes?: number;
  /** Where stateDict leaves values: host bytes, or tensors on the device. Default 'host'. */
  readonly stateDictDevice?: 'host' | 'device';
  /** stateDict gives the first rank all entries, the others none. Default false. */
  readonly stateDictOnRank0Only?: boolean;
  /**
   * Ranks hold different parameters here (experts), so optimizer state stays where it is. Default:
   * true for an inner instance of fewer ranks, replicas included, than the tree has.
   */
  readonly noBroadcastOptimState?: boolean;
  /** Let resetParameters make new initial values. Default false: it is easily called by mistake. */
  readonly allowResetParameters?: boolean;
  /** toString tells the options and flat parameters too. Default false. */
  readonly verbose?: boolean;
  /**
   * Parameters that this rank's backward does not reach, but another's, count as having zeros:
   * ranks agree at the start of each backward, by one small collective. Default false: ranks that
   * differ get an error that names the parameters. The root's counts.
   */
  readonly findUnusedParameters?: boolean;
  /** For errors and traces. Default the module's path is not known, so 'fsdp'. */
  readonly name?: string;
}
